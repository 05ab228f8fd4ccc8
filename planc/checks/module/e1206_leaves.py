"""E1206: leaves of a tree without a rule."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1206",
    title="leaves of a tree without a rule",
    reads="module",
    why="""`program.shardings(tree)` finds the layout of a leaf by its path, which is the name of a parameter of the
plan's model, with its shape; layers are single (`layers.3.norm`) or stacked along a leading dim (`layers.norm`). A leaf
under another name, or with another shape, has no layout in the plan. All of them are listed, each with the nearest
names.""",
    bad="",
    good="",
)
