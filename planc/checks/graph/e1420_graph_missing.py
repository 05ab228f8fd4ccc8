"""E1420: parts without a graph."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1420",
    title="parts without a graph",
    reads="graph",
    why="""`fabric`, `points` and `wire` say the links of the graph that a `graph` sentence of the same file
names.""",
    bad="",
    good="",
)
