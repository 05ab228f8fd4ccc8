"""Parts of a tensor on a rank, cut dim by dim with numpy: beside planc's intervals."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from planc.sharding.transfer_core import MeshAxis, TensorLayout


def local_indices(held: TensorLayout, rank: int) -> list[Any] | None:
    """The indices of each dim that a rank of a side (from 0) holds, in order; None if its stage lacks the tensor."""
    stride, size = held.stage
    if rank // stride % size not in held.stages:
        return None
    found = []
    for at, dims in enumerate(held.used):
        index = np.arange(prod(n for n, _, _ in dims)).reshape([n for n, _, _ in dims])
        for dim, (_, _, axes) in enumerate(dims):
            for axis in axes:
                index = _chunk(index, dim, axis, rank)
        index = np.sort(index.ravel())
        if at == held.on_dim:
            coordinates = [rank // stride % size for stride, size in held.stored]
            sizes = [size for _, size in held.stored]
            each = -(-len(index) // prod(sizes))
            place = int(np.ravel_multi_index(coordinates, sizes)) if sizes else 0
            index = index[each * place : each * (place + 1)]
        found.append(index)
    return found


def mask(held: TensorLayout, rank: int) -> Any:
    """A mask of the elements of the tensor that a rank of a side (from 0) holds."""
    found = np.zeros([prod(n for n, _, _ in dims) for dims in held.used], bool)
    if (indices := local_indices(held, rank)) is not None:
        found[np.ix_(*indices)] = True
    return found


def _chunk(index: Any, dim: int, axis: MeshAxis, rank: int) -> Any:
    each, at = -(-index.shape[dim] // axis[1]), rank // axis[0] % axis[1]
    return index[(slice(None),) * dim + (slice(each * at, each * (at + 1)),)]
