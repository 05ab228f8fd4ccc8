"""E1208: code that asks for a tensor's values."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1208",
    title="code that asks for a tensor's values",
    reads="module",
    why="""A model's op graph is read from one run on the meta device, where tensors have shapes and no values. Code
that takes a branch by a value, or makes a shape from one, stops there; the message names its line.""",
    bad="",
    good="",
)
