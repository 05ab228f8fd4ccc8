"""Emits the table and the functions for padded parameters."""

from __future__ import annotations

from planc.backends.common.source_writer import INDENT, beside, comment
from planc.backends.xla.analysis.padding import padded, waste
from planc.backends.xla.analysis.pipeline import pipelined
from planc.diag.quoting import python_string
from planc.ir.sharding import Sharded

FUNCTIONS = '''
def pad(params: Any) -> Any:
    """Parameters in their stored shapes, for `init_state`: padded with zeros to PADDED."""

    def filled(path: Any, leaf: jax.Array) -> jax.Array:
        sizes = PADDED.get(_pattern(jax.tree_util.keystr(path, simple=True, separator=".")), ())
        lead = leaf.ndim - len(sizes)
        missing = [(0, stored - n) for (_, stored), n in zip(sizes, leaf.shape[lead:], strict=True)]
        return jnp.pad(leaf, [(0, 0)] * lead + missing)

    return jax.tree_util.tree_map_with_path(filled, params)


def _unpadded(params: Any) -> Any:
    """Parameters without their padding."""

    def own(path: Any, leaf: jax.Array) -> jax.Array:
        sizes = PADDED.get(_pattern(jax.tree_util.keystr(path, simple=True, separator=".")), ())
        return leaf[(..., *(slice(size) for size, _ in sizes))]

    return jax.tree_util.tree_map_with_path(own, params)
'''
WITHOUT = '''
def _without_padding(loss_fn: Loss) -> Loss:
    """The loss as a function of padded parameters."""
    return lambda params, *batch: loss_fn(_unpadded(params), *batch)
'''
CUT = "loss_fn = _without_padding(loss_fn)"
"""First line of functions that build a step. A pipeline unpads elsewhere: it recognises its layers by identity."""


def padding_table(sharded: Sharded) -> list[str]:
    """Return the lines of `PADDED`, sizes and padded sizes of the dims of padded parameters; [] if there are none."""
    found = padded(sharded)
    if not found:
        return []
    said = "Parameters that do not divide evenly, padded with zeros: each dim's size and stored size."
    rows = []
    for name, shape in found.items():
        pairs = zip(sharded.model.shape(sharded.model.param[name]), shape, strict=True)
        text = ", ".join(f"({size}, {stored})" for size, stored in pairs)
        comma = "," if len(shape) == 1 else ""
        code = f"{INDENT}{python_string(name)}: ({text}{comma}),"
        rows += beside(code, f"{waste(sharded, name):.1%} more")
    return [*comment(said), "PADDED = {", *rows, "}"]


def padding_functions(sharded: Sharded) -> list[str]:
    """Return the source of `pad` and of the functions that unpad; [] if no parameter is padded."""
    if not padded(sharded):
        return []
    return [FUNCTIONS] if pipelined(sharded.plan) else [FUNCTIONS, WITHOUT]
