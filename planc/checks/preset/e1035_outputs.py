"""E1035: an output that a preset may not write."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1035",
    title="an output that a preset may not write",
    reads="preset",
    why="""A preset may come from a stranger. What it names to be written (`folder` under [checkpoint]; `metrics`,
`tensorboard`, `wandb` and `profile` under [watch]) lies below the preset's own folder, links followed, and metrics
replace no file of another kind. `--checkpoint DIR` is the user's own word and may be any folder.""",
    bad="",
    good="",
)
