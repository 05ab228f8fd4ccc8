"""E1414: a part that does not add up."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1414",
    title="a part that does not add up",
    reads="graph",
    why="""Its numbers contradict each other, such as leaves that no spine joins.""",
    bad="",
    good="",
)
