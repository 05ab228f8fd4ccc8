"""E1404: two points joined twice."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1404",
    title="two points joined twice",
    reads="graph",
    why="""Two points have one wire; `x 2` says that it is two links. Two wires could each be meant, or one a
mistake.""",
    bad="",
    good="",
)
