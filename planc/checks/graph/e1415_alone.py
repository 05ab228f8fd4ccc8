"""E1415: a chip without a link."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1415",
    title="a chip without a link",
    reads="graph",
    why="""The chip is declared, and no wire leads to it.""",
    bad="",
    good="",
)
