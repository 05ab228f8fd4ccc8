"""E1411: a graph without chips."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1411",
    title="a graph without chips",
    reads="graph",
    why="""Ranks are laid on the chips of a graph, in the order in which they are written.""",
    bad="",
    good="",
)
