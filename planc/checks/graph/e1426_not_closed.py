"""E1426: a topology that does not hold together."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1426",
    title="a topology that does not hold together",
    reads="graph",
    why="""A switch is below itself, or the coordinates of a slice have gaps.""",
    bad="",
    good="",
)
