"""Emits the functions that keep state in host memory and fetch it layer by layer."""

from __future__ import annotations

from planc.backends.common.source_writer import beside, fill
from planc.backends.xla.analysis.offload import cause_of, updates_where_it_rests
from planc.backends.xla.analysis.state_dtypes import narrow_state
from planc.costing.step.offload import STATE
from planc.ir.plan import Plan
from planc.ir.sharding import Sharded

MEMORY = {False: "device", True: "pinned_host"}
"""JAX memory kinds: of a device, and pinned memory of its host."""

TRANSFER = '''
def _resting(where: Any, memory: str) -> Any:
    """The same layouts in another memory kind."""
    return jax.tree.map(lambda sharding: sharding.with_memory_kind(memory), where)


def _moved(tree: Any, memory: str) -> Any:
    """The tree transferred to a memory kind, inside a traced step."""
    spaces = {"device": jax.memory.Space.Device, "pinned_host": jax.memory.Space.Host}
    return jax.tree.map(lambda x: jax.device_put(x, spaces[memory]), tree)
'''

UPDATED = '''
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

        old, state = (_moved(cut(tree), "device") for tree in held)
        <old>
        state = jax.tree.map(lambda x, counter, n: (counter, x)[n >= 0], state, moments, of_moments)
        updates, state = optimizer.update(cut(rows), state, old)
        new = jax.tree.map(lambda p, u: p - lr * u, old, updates)
        rests = jax.tree.map(lambda x, n: _moved(x, ("device", OPTIMIZER_MEMORY)[n >= 0]), state, of_moments)
        return <held>, put(held[1], rests)

    rows = by_layer(grads, stacks)
    held = by_layer(params, stacks), by_layer(moments, of_moments)
    for layers in sorted({len(x) for x in jax.tree.leaves(held[0])}):
        held = jax.lax.fori_loop(0, layers, functools.partial(layer, layers), held)
    return jax.tree.map(lambda x, like: x.reshape(like.shape), held, (params, moments))


def _stack_dims(path: Any, leaf: Any) -> int:
    """Number of a leaf's leading (stack) dims."""
    return leaf.ndim - len(PARAMS[_pattern(jax.tree_util.keystr(path, simple=True, separator="."))])
'''

COPIED = '''
def _copies(params: Any) -> Any:
    """Copies of the parameters on the device: matrices in COMPUTE, vectors in their own dtype."""

    def copied(path: Any, leaf: jax.Array) -> jax.Array:
        name = _pattern(jax.tree_util.keystr(path, simple=True, separator="."))
        copy = _moved(leaf, "device").astype((jnp.float32, COMPUTE)[len(PARAMS[name]) > 1])
        return jax.lax.optimization_barrier(copy).astype(jnp.float32)  # otherwise XLA would keep it in fp32

    return jax.tree_util.tree_map_with_path(copied, params)
'''
"""The compute copies of offloaded parameters."""


def memory_lines(plan: Plan) -> list[str]:
    """Return the lines of `PARAMS_MEMORY` and `OPTIMIZER_MEMORY`; [] if all state stays on the device."""
    if not plan.state_on_host:
        return []
    found = ((noun, MEMORY[noun in plan.offloaded], cause_of(plan, noun)) for noun in STATE)
    return [
        line
        for noun, memory, cause in found
        for line in beside(f'{noun.upper()}_MEMORY = "{memory}"', cause.comment() if cause else "")
    ]


def offload_functions(sharded: Sharded) -> list[str]:
    """Return the source of the functions that transfer state, one text each; [] if all state stays on the device."""
    plan = sharded.plan
    if not plan.state_on_host:
        return []
    narrow, stays = narrow_state(plan), updates_where_it_rests(sharded)
    new = "_in_dtype(new, PARAMS_DTYPE)" if narrow else "new"
    old = ["old = _wide(old)"] if narrow else []
    old += [] if stays else ["old = _placed(_placed(old, PARAMS), OPTIMIZER)"]
    updated = fill(
        UPDATED,
        old="\n".join(old),
        held=f"put(held[0], _moved({new}, PARAMS_MEMORY))"
        if stays
        else f"put(held[0], _moved(_placed({new}, PARAMS), PARAMS_MEMORY))",
    )
    return [TRANSFER, updated, *([COPIED] if "params" in plan.offloaded else [])]
