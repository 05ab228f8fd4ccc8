"""E1007: checkpoints are not written yet."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1007",
    title="checkpoints are not written yet",
    reads="preset",
    why="""The preset asks for checkpoints, and this version writes none. It refuses rather than
let someone count on them.""",
    bad="",
    good="",
)
