"""E1024: the run has changed its course."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1024",
    title="the run has changed its course",
    reads="preset",
    why="""A setting that decides the losses differs from the checkpoint's: seed, learning rate and its schedule,
AdamW's numbers, clipping, the global batch. Going on would give a run that nobody wrote. `allow` under
[checkpoint] names settings that may change, such as `allow = ["steps"]` to train for longer.""",
    bad="",
    good="",
)
