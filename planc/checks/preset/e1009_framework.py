"""E1009: the framework is not installed."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1009",
    title="the framework is not installed",
    reads="preset",
    why="""The target needs torch or jax. Checking and lowering do not; training does.""",
    bad="",
    good="",
)
