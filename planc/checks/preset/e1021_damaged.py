"""E1021: a damaged checkpoint."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1021",
    title="a damaged checkpoint",
    reads="preset",
    why="""A file is shorter or longer than what was written, or its SHA-256 differs: going on from it would train from
values that the run never had. `--resume STEP` names an older one; `on_damage = "previous"` under
[checkpoint] goes on from the newest whole one by itself.""",
    bad="",
    good="",
)
