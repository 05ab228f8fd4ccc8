"""E1024: settings that decide the losses differ from the checkpoint's."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1024",
    title="settings differ from the checkpoint's",
    reads="preset",
    why="""A setting that decides the losses differs from the checkpoint's: seed, learning rate and its schedule,
AdamW's numbers, clipping, the global batch. Resuming would give a run that no preset describes. `allow`
under [checkpoint] names settings that may change, such as `allow = ["steps"]` to train for longer.""",
    bad="",
    good="",
)
