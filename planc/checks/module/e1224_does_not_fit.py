"""E1224: a rule that does not fit its leaf."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1224",
    title="a rule that does not fit its leaf",
    reads="module",
    why="""A rule for a leaf of a JAX tree names the dims of each of its dimensions in order. Their number is that of
the leaf's dimensions, and the size of each is the product of its dims in the plan's model. Where the plan divides two
parameters with these dims in two ways, as after an `override`, the rule says with `as` which of them the leaf is.""",
    bad="",
    good="",
)
