"""E1023: the data have changed."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1023",
    title="the data have changed",
    reads="preset",
    why="""The data are not those that the run was trained on until the checkpoint: the SHA-256 differs. Steps would
repeat or leave out text, and the losses would not be comparable. `allow = ["data"]` under [checkpoint] goes
on with other data on purpose.""",
    bad="",
    good="",
)
