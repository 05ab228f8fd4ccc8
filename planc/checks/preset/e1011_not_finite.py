"""E1011: the loss is not a number."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1011",
    title="the loss is not a number",
    reads="preset",
    why="""The loss or the gradient norm became infinite or undefined. Training stops at that step, because later
steps would be meaningless.""",
    bad="",
    good="",
)
