"""E1401: a graph in pieces."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1401",
    title="a graph in pieces",
    reads="graph",
    why="""Every chip of a machine must reach every other: a mesh is laid over all of them.""",
    bad="",
    good="",
)
