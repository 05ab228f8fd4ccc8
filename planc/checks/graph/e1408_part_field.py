"""E1408: a part has no such field."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1408",
    title="a part has no such field",
    reads="graph",
    why="""The fields of a part are numbers and names of links. One that is not known would be dropped in
silence.""",
    bad="",
    good="",
)
