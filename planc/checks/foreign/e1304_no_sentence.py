"""E1304: a field that no sentence says."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1304",
    title="a field that no sentence says",
    reads="foreign",
    why="""The field is known, and changes layout, memory or time in a way that planc's language has no sentence for,
so that a plan without it would be costed wrongly.""",
    bad="",
    good="",
)
