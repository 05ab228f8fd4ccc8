"""E1410: a graph with too many links."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1410",
    title="a graph with too many links",
    reads="graph",
    why="""A check of a stranger's file has an end. A machine of 16,384 chips with a card each has some 50,000
links.""",
    bad="",
    good="",
)
