"""E1013: the data does not fit the model."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1013",
    title="the data does not fit the model",
    reads="preset",
    why="""Every token must be in the model's vocabulary (bytes need 256 entries), and there must be enough tokens for
a sequence to train on and one that is held out.""",
    bad="",
    good="",
)
