"""E1020: not a receipt."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1020",
    title="not a receipt",
    reads="preset",
    why="""The file is not a receipt of `planc train`: it cannot be read, is not JSON, or lacks a
field.""",
    bad="",
    good="",
)
