"""The state of a session as boxes (offset and size) of whole tensors, for writing and reading checkpoints.

A device's shard of an array is one box; a stack of layers is one tensor per layer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from planc.backends.xla.analysis.stacked_params import StackedDims, Stacks, undivided
from planc.backends.xla.program.stacked_boxes import Index, stacked_box
from planc.ir.model import Model
from planc.ir.session import Piece

if TYPE_CHECKING:
    from jax.sharding import Sharding

    from planc.backends.xla.runtime.steps import Steps
    from planc.ir.session import Read, Weights

KINDS = {"params": "params", "mu": "exp_avg", "m": "exp_avg", "nu": "exp_avg_sq", "v": "exp_avg_sq"}
"""The kind of state in a subtree, by its key or field: names of optax and of the reference."""
COUNTS = ("count", "steps")
"""Scalars that count updates."""


def pieces(model: Model, current: Callable[[], Any], stacks: Stacks | None = None) -> list[Piece]:
    """Return the pieces (boxes of tensors) of the state that this process saves: the shards with replica id 0. `stacks`
    are the program's stacks of layers; None if layers are in order.

    The values of a shard are looked up in `current()` at the time of the copy, since a step donates its arrays.
    """
    shards, found, stacks = _Shards(current), list[Piece](), stacks or undivided(model)
    for place, (path, array) in enumerate(jax.tree_util.tree_leaves_with_path(current())):
        if (kind := _kind(path)) is None:
            continue
        for at, shard in enumerate(array.addressable_shards):
            if shard.replica_id == 0:
                name = _name(path[-1])
                values = shards.values(place, at)
                of, whole = f"{kind}.{name}", model.shape(model.param[name])
                found += _of_shard(of, stacks.get(name), array.shape, whole, shard.index, values)
    last = found[-1]
    found[-1] = replace(last, copy_to=lambda array: shards.forget_after(last.copy_to, array))
    return found


def restored(
    model: Model, state: Any, where: Any, read: Read, optimizer_steps: int, stacks: Stacks | None = None
) -> Any:
    """Return `state` with the values that `read` returns, laid out as `where` says, and with counters at
    `optimizer_steps`; `stacks` as for `pieces`."""
    held = stacks or undivided(model)

    def leaf(path: Any, array: Any, sharding: Sharding) -> jax.Array:
        kind = _kind(path)
        if kind is None:
            assert _name(path[-1]) in COUNTS, f"{jax.tree_util.keystr(path)} is in no checkpoint"
            count = np.full(array.shape, optimizer_steps, array.dtype)
            return jax.make_array_from_callback(array.shape, sharding, lambda index: count[index])
        name, of_layers = f"{kind}.{_name(path[-1])}", held.get(_name(path[-1]))
        stack = (of_layers.dims, of_layers.layers) if of_layers else None
        own = model.shape(model.param[_name(path[-1])])

        def values(index: Index | None) -> Weights:
            box = tuple(slice(*s.indices(n)[:2]) for s, n in zip(index or (), array.shape, strict=False))
            found: Weights = stacked_box(read, name, stack, own, box).astype(array.dtype)
            return found

        return jax.make_array_from_callback(array.shape, sharding, values)

    return jax.tree_util.tree_map_with_path(leaf, state, where)


def guarded(steps: Steps) -> Steps:
    """Return `steps` with a step that keeps the old state if the loss or the gradient norm is not finite."""

    def unless_nan(state: Any, tokens: jax.Array, targets: jax.Array, lr: jax.Array) -> Any:
        new, metrics = steps.step(state, tokens, targets, lr)
        fine = jnp.isfinite(metrics["loss"]) & jnp.isfinite(metrics["grad_norm"])
        return jax.tree.map(lambda a, b: jnp.where(fine, a, b), new, state), metrics

    return replace(steps, step=jax.jit(unless_nan, donate_argnums=0, out_shardings=(steps.state, None)))


def not_finite(params: Any) -> list[str]:
    """Return the devices of this process whose shards of `params` have NaN or infinity, each with the first parameter
    that does."""
    found: dict[int, str] = {}
    for path, array in jax.tree_util.tree_leaves_with_path(params):
        for shard in array.addressable_shards:
            if not np.isfinite(np.asarray(shard.data)).all():
                found.setdefault(shard.device.id, f"device {shard.device.id}: parameter {_name(path[-1])}")
    return [found[device] for device in sorted(found)]


def _of_shard(
    name: str,
    stack: StackedDims | None,
    shape: tuple[int, ...],
    whole: tuple[int, ...],
    index: Index,
    values: Callable[[], Weights],
) -> list[Piece]:
    """Return the pieces of a shard at `index` of an array of `shape`: one piece, or one per layer of a `stack`. The
    saved tensors have dims `whole`, without padding."""
    bounds = [s.indices(n)[:2] for s, n in zip(index, shape, strict=True)]
    dims = 0 if stack is None else len(stack.dims)
    own = [(begin, min(end, n)) for (begin, end), n in zip(bounds[dims:], whole, strict=True)]
    if any(begin >= end for begin, end in own):
        return []  # nothing but zeros that fill the array up
    if stack is None:
        return [_piece(name, whole, own, values)]
    first = [begin for begin, _ in bounds[:dims]]
    places = product(*(range(*b) for b in bounds[:dims]))
    numbers = ((at, stack.layers[np.ravel_multi_index(at, stack.dims)]) for at in places)
    return [
        _piece(
            name.replace("*", str(number)),
            whole,
            own,
            _layer(values, tuple(a - b for a, b in zip(at, first, strict=True))),
        )
        for at, number in numbers
        if number is not None
    ]


def _layer(values: Callable[[], Weights], at: tuple[int, ...]) -> Callable[[], Weights]:
    return lambda: values()[at]


def _piece(name: str, shape: tuple[int, ...], bounds: list[tuple[int, int]], values: Callable[[], Weights]) -> Piece:
    offset, size = tuple(a for a, _ in bounds), tuple(b - a for a, b in bounds)
    assert prod(size) > 0, f"{name} has an empty shard"
    inside = tuple(slice(n) for n in size)
    return Piece(name, tuple(shape), offset, size, lambda array: np.copyto(array, values()[inside]))


class _Shards:
    """The current shards of the state on the host, without a copy if the device is the CPU."""

    def __init__(self, current: Callable[[], Any]) -> None:
        self._current = current
        self._state: Any = None
        self._shards: list[list[Any]] = []

    def values(self, place: int, at: int) -> Callable[[], Weights]:
        """Return a function that returns, when called, the values of shard number `at` of leaf number `place`."""
        return lambda: np.asarray(self._of_now()[place][at])

    def forget_after(self, copy_to: Callable[[Weights], None], array: Weights) -> None:
        """Copy the last piece into `array` and drop the views of the shards, which would keep a donated state alive."""
        copy_to(array)
        self._state, self._shards = None, []

    def _of_now(self) -> list[list[Any]]:
        """Return the shards of the current state by leaf, flattened once for all pieces of a save."""
        state = self._current()
        if state is not self._state:
            self._state = state
            self._shards = [[s.data for s in array.addressable_shards] for array in jax.tree.leaves(state)]
        return self._shards


def _kind(path: Any) -> str | None:
    """Return the kind of state of the leaf at `path`, as checkpoints name it; None for a counter."""
    return KINDS.get(_name(path[-2])) if len(path) > 1 else None


def _name(entry: Any) -> str:
    return str(getattr(entry, "key", getattr(entry, "name", getattr(entry, "idx", ""))))
