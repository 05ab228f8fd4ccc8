"""E1221: rules of a tree that cannot be read."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1221",
    title="rules of a tree that cannot be read",
    reads="module",
    why="""A rule for the leaves of a JAX tree is a pattern and the dims of the leaves that it matches:
`"*/mlp/wi/kernel" = embed, ffn`. A dimension that is the product of several dims is written `heads * head_dim`, one
that the model has no name for `_`, and that of a stack of layers `layers`, in any place. `as layers.*.attention.wo`
at the end says which parameter's layout is taken. They are given to `program.shardings(tree, rules)` as a mapping or
a file; a file `NAME.rules` beside `NAME.plan` is read by itself.""",
    bad="",
    good="",
)
