"""The state of a session as boxes of whole tensors: what a checkpoint is written from and read into.

A device's shard of an array is one box; a stack of layers is one tensor a layer.
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

from planc.backends.xla.analysis.stacked_params import numbers
from planc.ir.model import Model
from planc.ir.session import Piece

if TYPE_CHECKING:
    from jax.sharding import Sharding

    from planc.backends.xla.runtime.session import Steps
    from planc.ir.session import Read, Weights

Index = tuple[slice, ...]

KINDS = {"params": "params", "mu": "exp_avg", "m": "exp_avg", "nu": "exp_avg_sq", "v": "exp_avg_sq"}
"""The kind of state in a subtree, by its key or field: optax's names and the reference's."""
COUNTS = ("count", "steps")
"""Scalars that count updates."""


def pieces(model: Model, current: Callable[[], Any]) -> list[Piece]:
    """The pieces that this process saves: every shard that is the first copy of its values.

    The shards' values are looked up in `current()` when they are copied: a step donates its arrays.
    """
    shards, found = _Shards(current), list[Piece]()
    for place, (path, array) in enumerate(jax.tree_util.tree_leaves_with_path(current())):
        if (kind := _kind(path)) is None:
            continue
        for at, shard in enumerate(array.addressable_shards):
            if shard.replica_id == 0:
                found += _of_shard(model, kind, path, array.shape, shard.index, shards.values(place, at))
    last = found[-1]
    found[-1] = replace(last, copy_to=lambda array: shards.forget_after(last.copy_to, array))
    return found


def restored(model: Model, state: Any, where: Any, read: Read, optimizer_steps: int) -> Any:
    """A state of the same arrays with the values of `read`, laid out as `where` says."""

    def leaf(path: Any, array: Any, sharding: Sharding) -> jax.Array:
        kind = _kind(path)
        if kind is None:
            assert _name(path[-1]) in COUNTS, f"{jax.tree_util.keystr(path)} is in no checkpoint"
            count = np.full(array.shape, optimizer_steps, array.dtype)
            return jax.make_array_from_callback(array.shape, sharding, lambda index: count[index])
        name, stack, shape = f"{kind}.{_name(path[-1])}", _stack(model, path, array.shape), array.shape

        def values(index: Index | None) -> Weights:
            return _read(model, read, name, stack, index or ()).astype(array.dtype)

        return jax.make_array_from_callback(shape, sharding, values)

    return jax.tree_util.tree_map_with_path(leaf, state, where)


def guarded(steps: Steps) -> Steps:
    """`steps`, whose step gives the old state back where the loss or the gradient norm is no number."""

    def unless_nan(state: Any, tokens: jax.Array, targets: jax.Array, lr: jax.Array) -> Any:
        new, metrics = steps.step(state, tokens, targets, lr)
        fine = jnp.isfinite(metrics["loss"]) & jnp.isfinite(metrics["grad_norm"])
        return jax.tree.map(lambda a, b: jnp.where(fine, a, b), new, state), metrics

    return replace(steps, step=jax.jit(unless_nan, donate_argnums=0, out_shardings=(steps.state, None)))


def not_finite(params: Any) -> list[str]:
    """Devices of this process whose parts of `params` have NaN or infinity, with the first such parameter of each."""
    found: dict[int, str] = {}
    for path, array in jax.tree_util.tree_leaves_with_path(params):
        for shard in array.addressable_shards:
            if not np.isfinite(np.asarray(shard.data)).all():
                found.setdefault(shard.device.id, f"device {shard.device.id}: parameter {_name(path[-1])}")
    return [found[device] for device in sorted(found)]


def _read(model: Model, read: Read, name: str, stack: tuple[int, ...], index: Index) -> Weights:
    """A box of a leaf: of one tensor, or of one a layer."""
    own = model.shape(model.param[name.partition(".")[2]])
    if not stack:
        return _filled(read, name, index, own)
    inner = index[len(stack) :]
    rows = [range(*s.indices(n)) for s, n in zip(index, stack, strict=False)]
    layers = [
        _filled(read, name.replace("*", str(_number(model, name, at, stack))), inner, own) for at in product(*rows)
    ]
    return np.stack(layers).reshape(*map(len, rows), *layers[0].shape)


def _filled(read: Read, name: str, index: Index, own: tuple[int, ...]) -> Weights:
    """A box of one tensor with dims `own`; what lies beyond them is zeros, as the array is stored filled up."""
    bounds = [(s.start or 0, own[i] if s.stop is None else s.stop) for i, s in enumerate(index)]
    if all(stop <= n for (_, stop), n in zip(bounds, own, strict=False)):
        return read(name, index)
    found = np.zeros([stop - start for start, stop in bounds], np.float32)
    there = tuple(slice(start, min(stop, n)) for (start, stop), n in zip(bounds, own, strict=True))
    if all(s.start < s.stop for s in there):
        found[tuple(slice(s.stop - s.start) for s in there)] = read(name, there)
    return found


def _number(model: Model, name: str, at: tuple[int, ...], stack: tuple[int, ...]) -> int:
    """The layer at a place of the stack of a tensor."""
    return numbers(model, model.param[name.partition(".")[2]])[np.ravel_multi_index(at, stack)]


def _of_shard(
    model: Model, kind: str, path: Any, shape: tuple[int, ...], index: Index, values: Callable[[], Weights]
) -> list[Piece]:
    """One piece, or one a layer of a stack."""
    name, stack = f"{kind}.{_name(path[-1])}", _stack(model, path, shape)
    bounds = [s.indices(n)[:2] for s, n in zip(index, shape, strict=True)]
    dims, whole = len(stack), model.shape(model.param[_name(path[-1])])
    own = [(begin, min(end, n)) for (begin, end), n in zip(bounds[dims:], whole, strict=True)]
    if any(begin >= end for begin, end in own):
        return []  # nothing but zeros that fill the array up
    if not stack:
        return [_piece(name, whole, own, values)]
    first = [begin for begin, _ in bounds[:dims]]
    return [
        _piece(
            name.replace("*", str(_number(model, name, at, stack))),
            whole,
            own,
            _layer(values, tuple(a - b for a, b in zip(at, first, strict=True))),
        )
        for at in product(*(range(*b) for b in bounds[:dims]))
    ]


def _layer(values: Callable[[], Weights], at: tuple[int, ...]) -> Callable[[], Weights]:
    return lambda: values()[at]


def _piece(name: str, shape: tuple[int, ...], bounds: list[tuple[int, int]], values: Callable[[], Weights]) -> Piece:
    offset, size = tuple(a for a, _ in bounds), tuple(b - a for a, b in bounds)
    assert prod(size) > 0, f"{name} has an empty shard"
    inside = tuple(slice(n) for n in size)
    return Piece(name, tuple(shape), offset, size, lambda array: np.copyto(array, values()[inside]))


class _Shards:
    """The shards of the state as it is now, on the host; without a copy where the device is the CPU."""

    def __init__(self, current: Callable[[], Any]) -> None:
        self._current = current
        self._state: Any = None
        self._shards: list[list[Any]] = []

    def values(self, place: int, at: int) -> Callable[[], Weights]:
        """A function that copies one device's part of one leaf when it is called."""
        return lambda: np.asarray(self._of_now()[place][at])

    def forget_after(self, copy_to: Callable[[Weights], None], array: Weights) -> None:
        """With the last piece: views would hold on to a state that a step has given up."""
        copy_to(array)
        self._state, self._shards = None, []

    def _of_now(self) -> list[list[Any]]:
        """The state is flattened once for all pieces of a save."""
        state = self._current()
        if state is not self._state:
            self._state = state
            self._shards = [[s.data for s in array.addressable_shards] for array in jax.tree.leaves(state)]
        return self._shards


def _kind(path: Any) -> str | None:
    """The kind of tensor of a leaf; None for a counter."""
    return KINDS.get(_name(path[-2])) if len(path) > 1 else None


def _stack(model: Model, path: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The leading dims over which the layers of a leaf are laid; () for a parameter of no layer."""
    param = model.param[_name(path[-1])]
    return shape[: len(shape) - len(param.shape_dims)]


def _name(entry: Any) -> str:
    """The key or field of one step of a path."""
    return str(getattr(entry, "key", getattr(entry, "name", getattr(entry, "idx", ""))))
