"""E0901: a target cannot do what a sentence asks."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E0901",
    title="a sentence the target cannot do",
    reads="target",
    why="""A plan's meaning does not depend on the target, but what a target can run does. It
refuses the sentence rather than leaving it out. `planc check --target xla` finds this before
lowering does.""",
    bad="",
    good="",
)
