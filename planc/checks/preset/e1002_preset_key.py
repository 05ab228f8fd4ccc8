"""E1002: an unknown key in a preset."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1002",
    title="an unknown key in a preset",
    reads="preset",
    why="""A key that planc does not know would be ignored silently, and the run would not be the one that the
preset describes. The help names the nearest legal key.""",
    bad="",
    good="",
)
