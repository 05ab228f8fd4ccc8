"""Boxes of arrays with stacked layers and padding, put together from boxes of the tensors of a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np

Index = tuple[slice, ...]
ReadBox = Callable[[str, Index], Any]


def stacked_box(
    read: ReadBox,
    name: str,
    stack: tuple[tuple[int, ...], tuple[int | None, ...]] | None,
    own: tuple[int, ...],
    index: Index,
) -> Any:
    """Return the values at `index` of an array. They come from one tensor with dims `own`, or in a `stack` from one
    tensor per layer, with zeros in the padding.

    Args:
        read: returns the values of a box of a tensor by its name.
        name: the parameter, with `*` for the layer.
        stack: the leading dims of the array, and the layer at each of their places, None for padding; None without.
        own: the shape of a tensor, without padding.
        index: the box of the array, with starts and stops.
    """
    if stack is None:
        return padded_box(read, name, own, index)
    dims, layers = stack
    inner = index[len(dims) :]
    rows = [range(*s.indices(n)) for s, n in zip(index, dims, strict=False)]
    numbers = [layers[np.ravel_multi_index(at, dims)] for at in product(*rows)]
    zeros = np.zeros([s.stop - s.start for s in inner], np.float32)
    found = [zeros if n is None else padded_box(read, name.replace("*", str(n)), own, inner) for n in numbers]
    return np.stack(found).reshape(*map(len, rows), *zeros.shape)


def padded_box(read: ReadBox, name: str, own: tuple[int, ...], index: Index) -> Any:
    """Return the values at `index` of one tensor with dims `own`; elements beyond these dims are zero padding."""
    if all(s.stop <= n for s, n in zip(index, own, strict=True)):
        return read(name, index)
    found = np.zeros([s.stop - s.start for s in index], np.float32)
    there = tuple(slice(s.start, min(s.stop, n)) for s, n in zip(index, own, strict=True))
    if all(s.start < s.stop for s in there):
        found[tuple(slice(s.stop - s.start) for s in there)] = read(name, there)
    return found
