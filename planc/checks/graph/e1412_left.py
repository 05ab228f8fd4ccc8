"""E1412: what is left of a link."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1412",
    title="what is left of a link",
    reads="graph",
    why="""`at 50 %` says that half of a link's bandwidth is left. A dead link is left out of the file.""",
    bad="",
    good="",
)
