"""E1417: a chip of several devices in a graph."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1417",
    title="a chip of several devices in a graph",
    reads="graph",
    why="""A graph's chips are one device each. Write each device as a chip, with a link between the two.""",
    bad="",
    good="",
)
