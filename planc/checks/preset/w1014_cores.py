"""W1014: more processes than cores."""

from planc.diag.registry import Rule

RULE = Rule(
    code="W1014",
    title="more processes than cores",
    reads="preset",
    why="""The run is correct but slow, and its step times measure this machine's process scheduler rather than the
plan.""",
    bad="",
    good="",
)
