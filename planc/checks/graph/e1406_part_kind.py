"""E1406: an unknown kind of part."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1406",
    title="an unknown kind of part",
    reads="graph",
    why="""Regular parts are `rack`, `rail`, `fat_tree`, `dragonfly` and `torus`; everything else is written
with `points` and `wire`.""",
    bad="",
    good="",
)
