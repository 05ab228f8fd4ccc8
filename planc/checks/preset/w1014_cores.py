"""W1014: more processes than cores."""

from planc.diag.registry import Rule

RULE = Rule(
    code="W1014",
    title="more processes than cores",
    reads="preset",
    why="""The run is correct but slow, and its step times say something about this machine's
scheduler rather than about the plan.""",
    bad="",
    good="",
)
