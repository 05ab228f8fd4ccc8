"""E1225: two rules that disagree."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1225",
    title="two rules that disagree",
    reads="module",
    why="""Two rules match one leaf of a JAX tree and give it other dims. No rule goes before another: the patterns
are made so that one of them matches the leaf.""",
    bad="",
    good="",
)
