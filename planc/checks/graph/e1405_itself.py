"""E1405: a point joined with itself."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1405",
    title="a point joined with itself",
    reads="graph",
    why="""A wire leads from one point to another.""",
    bad="",
    good="",
)
