"""E1006: a compiled plan that was changed."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1006",
    title="a compiled plan that was changed",
    reads="preset",
    why="""The compiled plan's sum does not match, it holds what the language cannot write, or the source beside the
preset compiles to another plan. Only `planc embed` may write it: a preset may come from a stranger, and
the names and sentences of its plan stand in the program that is run.""",
    bad="",
    good="",
)
