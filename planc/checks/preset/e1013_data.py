"""E1013: the data does not fit the model."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1013",
    title="the data does not fit the model",
    reads="preset",
    why="""Byte-level data needs a vocabulary of at least 256 entries.""",
    bad="",
    good="",
)
