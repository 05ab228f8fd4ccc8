"""E1419: a number of graphs."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1419",
    title="a number of graphs",
    reads="graph",
    why="""A graph is a whole machine. `cluster 4 x pod` would have to say how the four are joined; write it in
the graph.""",
    bad="",
    good="",
)
