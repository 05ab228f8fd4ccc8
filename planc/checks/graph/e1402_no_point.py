"""E1402: a wire to a point that is not there."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1402",
    title="a wire to a point that is not there",
    reads="graph",
    why="""A wire names points of `points` sentences, or of regular parts: `pod.node3.chip0`, `pod.spine1`.""",
    bad="",
    good="",
)
