"""E1031: weights of another model."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1031",
    title="weights of another model",
    reads="preset",
    why="""The folder's tensors are not the parameters of the plan's model: a name is missing or left over, or a shape
differs. Nothing is cut, padded or left at its first value.""",
    bad="",
    good="",
)
