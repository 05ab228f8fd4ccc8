"""E1006: a compiled plan that was changed."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1006",
    title="a compiled plan that was changed",
    reads="preset",
    why="""The compiled plan's sum does not match, or it is none that this version reads. It is
written by `planc embed` and not by hand.""",
    bad="",
    good="",
)
