"""E1416: two graphs in one file."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1416",
    title="two graphs in one file",
    reads="graph",
    why="""All `fabric`, `points` and `wire` sentences of a file belong to its graph, so it has one.""",
    bad="",
    good="",
)
