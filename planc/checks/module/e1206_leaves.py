"""E1206: leaves of a tree without a rule."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1206",
    title="leaves of a tree without a rule",
    reads="module",
    why="""`program.shardings(tree)` finds the layout of a leaf by its path, where that is planc's own name of a
parameter (layers are single, `layers.3.norm`, or stacked along a leading dim, `layers.norm`); else by a rule,
`"*/mlp/wi/kernel" = embed, ffn`; else by its shape, where all dims that it can have lie in one layout. With `model=`,
a function of the tree and tokens, the function's operations tell which dims are which. The leaves that are left are
listed, each with what it may be or with the nearest names.""",
    bad="",
    good="",
)
