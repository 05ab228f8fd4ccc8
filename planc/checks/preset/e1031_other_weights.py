"""E1031: weights of another model."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1031",
    title="weights of another model",
    reads="preset",
    why="""The folder's tensors are not the parameters of the plan's model: a name is missing or left over, or a
shape differs. planc does not slice or pad a tensor, and leaves none at its initial value.""",
    bad="",
    good="",
)
