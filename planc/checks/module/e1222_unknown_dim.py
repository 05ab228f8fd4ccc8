"""E1222: a rule with an unknown dim."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1222",
    title="a rule with an unknown dim",
    reads="module",
    why="""The dims of a rule for a JAX tree are those of the parameters of the plan's model, with `layers` for a
stack of layers and `_` for a dim without a name, and `as` is followed by the name of one of these parameters.""",
    bad="",
    good="",
)
