"""E1210: inputs that a module does not take."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1210",
    title="inputs that a module does not take",
    reads="module",
    why="""A module is called once with tokens, [sequences, tokens], or with the inputs that `planc.model_of` is given.
Where it cannot be built or called so, the line of its source that failed is named.""",
    bad="",
    good="",
)
