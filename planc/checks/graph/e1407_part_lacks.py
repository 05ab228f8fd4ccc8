"""E1407: a part lacks a number or a link."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1407",
    title="a part lacks a number or a link",
    reads="graph",
    why="""A part is written once for all of its points, so each number and link that it has no default for must
be there.""",
    bad="",
    good="",
)
