"""Parameters that are stored with padding to equal shards."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from planc.backends.xla.program.names import PADDED, Loss, _pattern


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


def _without_padding(loss_fn: Loss) -> Loss:
    """The loss as a function of padded parameters."""
    return lambda params, *batch: loss_fn(_unpadded(params), *batch)
