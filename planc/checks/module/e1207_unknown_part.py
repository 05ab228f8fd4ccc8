"""E1207: a part without a place in an op graph."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1207",
    title="a part without a place in an op graph",
    reads="module",
    why="""A plan is for blocks that repeat, between a table of tokens and a head: what a block has that is no op of
planc's stays whole (N0121). A module without such blocks, or with parameters outside of them that are none of the
table's, a norm's or the head's, has no op graph, and a plan for it would leave out its bytes and its collectives. The
message names what was found, with its line of source.""",
    bad="",
    good="",
)
