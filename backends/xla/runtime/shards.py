"""Converts NumPy arrays to sharded JAX arrays and back, one whole parameter on the host at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from planc.backends.xla.analysis.stacked_params import Stacks, undivided
from planc.ir.model import Model, Param

if TYPE_CHECKING:
    from jax.sharding import Sharding

    from planc.ir.session import Initial, Tokens, Weights

COMPILED = "/jax/core/compile/backend_compile_duration"


class Compilations:
    """Counts the programs that this process compiles after the counter is created."""

    def __init__(self) -> None:
        self.count = 0
        jax.monitoring.register_event_duration_secs_listener(self._count_compilation)

    def _count_compilation(self, event: str, duration_secs: float, **_: str | int) -> None:
        self.count += event == COMPILED


DTYPES = {"fp32": jnp.float32, "bf16": jnp.bfloat16}


def abstract(shapes: dict[str, tuple[int, ...]], dtype: str = "fp32") -> Any:
    """Return abstract arrays of these `shapes` (by name) in `dtype`, without data."""
    return jax.eval_shape(lambda: {name: jnp.zeros(shape, DTYPES[dtype]) for name, shape in shapes.items()})


Stored = Mapping[str, tuple[int, ...]]
"""Shapes of one layer of the padded parameters, by name."""


def restacked(
    shapes: Mapping[str, tuple[int, ...]], stacks: Stacks, stored: Stored = MappingProxyType({})
) -> dict[str, tuple[int, ...]]:
    """Return a family's `shapes` with layers stacked as in `stacks`, and with the padded shapes in `stored`."""
    own = {n: stored.get(n, shape[1:] if n in stacks else shape) for n, shape in shapes.items()}
    return {n: (*stacks[n].dims, *shape) if n in stacks else shape for n, shape in own.items()}


def fill(
    model: Model,
    where: Mapping[str, Sharding],
    initial: Initial,
    stacks: Stacks | None = None,
    dtype: str = "fp32",
    stored: Stored = MappingProxyType({}),
) -> dict[str, jax.Array]:
    """Return every parameter of `model` in `dtype`, with values from `initial` and shardings from `where`. `stacks`
    orders the layers (None: as in the model). Parameters in `stored` are padded with zeros to their shapes there."""
    kept, held = np.dtype(DTYPES[dtype]), stacks or undivided(model)

    def whole(param: Param) -> Weights:
        values = _stacked(model, param, initial, held)
        shape = stored.get(param.name, model.shape(param))
        lead = values.ndim - len(shape)
        return np.pad(values, [(0, 0)] * lead + [(0, a - b) for a, b in zip(shape, values.shape[lead:], strict=True)])

    return {p.name: divided(whole(p).astype(kept), where[p.name]) for p in model.params}


def _stacked(model: Model, param: Param, initial: Initial, stacks: Stacks) -> Weights:
    """Return one whole parameter on the host, with its layers stacked and zeros in the padding of the stack."""
    shape = model.shape(param)
    if param.name not in stacks:
        return initial(param.name, shape)
    stack, zeros = stacks[param.name], np.zeros(shape, np.float32)
    layers = [zeros if n is None else initial(param.name.replace("*", str(n)), shape) for n in stack.layers]
    return np.stack(layers).reshape(*stack.dims, *shape)


def divided(array: Weights | Tokens, where: Sharding) -> jax.Array:
    """Return `array`, which every process holds whole, as an array laid out as `where`."""
    return jax.make_array_from_callback(array.shape, where, lambda index: array[index])


def whole(model: Model, tree: dict[str, jax.Array], stacks: Stacks) -> Iterator[tuple[str, Weights]]:
    """Yield name and gathered values of each layer's parameters in `tree`, on every process, in `model`'s order."""
    for param in model.params:
        array = tree[param.name]
        own = tuple(slice(n) for n in model.shape(param))
        if param.name not in stacks:
            yield param.name, _on_host(array)[own]
            continue
        stack = stacks[param.name]
        on_host = array.is_fully_addressable  # the host puts a stack together without compiling anything
        layers = np.asarray(array).reshape(-1, *array.shape[array.ndim - len(own) :]) if on_host else None
        for place, number in stack.places:
            layer = _on_host(_layer(array, np.unravel_index(place, stack.dims))) if layers is None else layers[place]
            yield param.name.replace("*", str(number)), layer[own]


@jax.jit
def _layer(stack: jax.Array, at: tuple[int, ...]) -> jax.Array:
    return stack[at]


def _on_host(array: jax.Array) -> Weights:
    """Return `array` on this host, after an all-gather if its shards are on several processes."""
    if not array.is_fully_addressable and isinstance(array.sharding, NamedSharding):
        everywhere = NamedSharding(array.sharding.mesh, PartitionSpec())  # type: ignore[no-untyped-call]
        array = jax.device_put(array, everywhere)
    return np.asarray(array)


def misplaced(tree: Any, where: Any) -> list[str]:
    """Return the names of the leaves of `tree` whose sharding differs from the one in `where`."""
    pairs = zip(jax.tree_util.tree_leaves_with_path(tree), jax.tree.leaves(where), strict=True)
    return [
        jax.tree_util.keystr(path, simple=True, separator=".")
        for (path, leaf), sharding in pairs
        if not leaf.sharding.is_equivalent_to(sharding, leaf.ndim)
    ]


def specs(tree: Any) -> dict[str, str]:
    """Return the sharding of each leaf of `tree`, by its path."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): str(getattr(leaf.sharding, "spec", "whole"))
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def peak_memory_gib(counter: str = "peak_bytes_in_use") -> float | None:
    """Return the peak memory (GiB) of the fullest local device; None if the platform does not report it.

    `counter` is a key of JAX's `memory_stats`: `peak_bytes_in_use` for arrays, `peak_pool_bytes` for memory that the
    allocator reserved.
    """
    stats = [device.memory_stats() or {} for device in jax.local_devices()]
    peaks = [s[counter] for s in stats if counter in s]
    return max(peaks) / 2**30 if peaks else None


def any_process(flag: bool) -> bool:
    """Return True on every process if `flag` is true on any process; a collective call."""
    from jax.experimental import multihost_utils

    return bool(np.any(multihost_utils.process_allgather(np.array(flag))))


def leave() -> None:
    """Shut the distributed runtime of JAX down."""
    jax.distributed.shutdown()  # type: ignore[no-untyped-call]
