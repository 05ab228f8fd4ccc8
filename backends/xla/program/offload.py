"""State in host memory, fetched layer by layer."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax

from planc.backends.xla.program.facts import FACTS
from planc.backends.xla.program.names import (
    COMPUTE,
    OPTIMIZER,
    OPTIMIZER_MEMORY,
    PARAMS,
    PARAMS_DTYPE,
    PARAMS_MEMORY,
    _pattern,
    _placed,
)
from planc.backends.xla.program.narrow_state import _in_dtype, _wide


def _resting(where: Any, memory: str) -> Any:
    """The same layouts in another memory kind."""
    return jax.tree.map(lambda sharding: sharding.with_memory_kind(memory), where)


def _transferred(tree: Any, memory: str) -> Any:
    """The tree transferred to a memory kind, inside a traced step."""
    spaces = {"device": jax.memory.Space.Device, "pinned_host": jax.memory.Space.Host}
    return jax.tree.map(lambda x: jax.device_put(x, spaces[memory]), tree)


def _updated(
    optimizer: optax.GradientTransformation, grads: Any, moments: Any, params: Any, lr: jax.Array
) -> tuple[Any, Any]:
    """Parameters and moments after the optimizer's update, computed layer by layer.

    Only one layer of the offloaded state is on the device at a time; state outside a stack is there whole.
    The loop starts when the gradients are ready: otherwise XLA fetches everything at the start of the step.
    The update of a parameter must not depend on other parameters.
    """
    stacks = jax.tree_util.tree_map_with_path(_stack_dims, params)
    of_moments = optax.tree_map_params(
        optimizer,
        lambda moment, dims: jax.tree.map(lambda _: dims, moment),
        moments,
        stacks,
        transform_non_params=lambda _: -1,  # a counter
        is_leaf=lambda moment: isinstance(moment, optax.MaskedNode),  # a parameter without this moment
    )

    def by_layer(tree: Any, dims: Any) -> Any:
        return jax.tree.map(lambda x, n: x.reshape(-1, *x.shape[n:]), tree, dims)

    def layer(layers: int, i: jax.Array, held: Any) -> Any:
        """Layer i of the stacks with this number of layers; nothing of other leaves."""

        def cut(tree: Any) -> Any:
            return jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, i, int(len(x) == layers)), tree)

        def put(tree: Any, new: Any) -> Any:
            rows = jax.tree.map(lambda x, y: y.reshape(-1, *x.shape[1:]), tree, new)
            return jax.tree.map(lambda x, y: jax.lax.dynamic_update_slice_in_dim(x, y, i, 0), tree, rows)

        old, state = (_transferred(cut(tree), "device") for tree in held)
        if FACTS.narrow_state:
            old = _wide(old)
        if not FACTS.updates_where_it_rests:
            old = _placed(_placed(old, PARAMS), OPTIMIZER)
        state = jax.tree.map(lambda x, counter, n: (counter, x)[n >= 0], state, moments, of_moments)
        updates, state = optimizer.update(cut(rows), state, old)
        new = jax.tree.map(lambda p, u: p - lr * u, old, updates)
        rests = jax.tree.map(lambda x, n: _transferred(x, ("device", OPTIMIZER_MEMORY)[n >= 0]), state, of_moments)
        stored = _in_dtype(new, PARAMS_DTYPE) if FACTS.narrow_state else new
        placed = stored if FACTS.updates_where_it_rests else _placed(stored, PARAMS)
        return put(held[0], _transferred(placed, PARAMS_MEMORY)), put(held[1], rests)

    rows = by_layer(grads, stacks)
    held = by_layer(params, stacks), by_layer(moments, of_moments)
    for layers in sorted({len(x) for x in jax.tree.leaves(held[0])}):
        held = jax.lax.fori_loop(0, layers, functools.partial(layer, layers), held)
    return jax.tree.map(lambda x, same: x.reshape(same.shape), held, (params, moments))


def _stack_dims(path: Any, leaf: Any) -> int:
    """Number of a leaf's leading (stack) dims."""
    return leaf.ndim - len(PARAMS[_pattern(jax.tree_util.keystr(path, simple=True, separator="."))])


def _copies(params: Any) -> Any:
    """Copies of the parameters on the device: matrices in COMPUTE, vectors in their own dtype."""

    def copied(path: Any, leaf: jax.Array) -> jax.Array:
        name = _pattern(jax.tree_util.keystr(path, simple=True, separator="."))
        copy = _transferred(leaf, "device").astype((jnp.float32, COMPUTE)[len(PARAMS[name]) > 1])
        return jax.lax.optimization_barrier(copy).astype(jnp.float32)  # otherwise XLA would keep it in fp32

    return jax.tree_util.tree_map_with_path(copied, params)
