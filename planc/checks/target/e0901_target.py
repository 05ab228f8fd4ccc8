"""E0901: a target cannot do what a sentence asks."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E0901",
    title="a sentence the target cannot do",
    reads="target",
    why="""A plan means the same on every target, but a target may be unable to run one of its sentences. The target
then refuses the sentence rather than leaving it out. `planc check --target xla` finds this before
lowering does.""",
    bad="",
    good="",
)
