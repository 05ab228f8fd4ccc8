"""E1207: a part without a place in an op graph."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1207",
    title="a part without a place in an op graph",
    reads="module",
    why="""A plan divides ops that it knows: embeddings, norms, linear layers, the core of attention, gated and plain
layers, experts, sums. A module with a parameter or a step that is none of them has no op graph, and a plan for it
would leave out its bytes and its collectives. The message names what was found, with its line of source.""",
    bad="",
    good="",
)
