"""Seconds of an op from a table of measured rates: exact at the measured sizes, interpolated between them.

Between measured sizes the logarithm of the rate is interpolated linearly in the logarithm of each length (multilinear
over the grid). If the table's seconds increase with every length, so do the interpolated ones. Outside the grid, the
cost model's curve is scaled to match the nearest measured point. Compute and memory rates never exceed the peak.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import product
from math import exp, log

from planc.ir.op_tables import OpTable

Sizes = tuple[float, ...]


def table_s(
    table: OpTable,
    sizes: Sizes,
    *,
    work: Callable[[Sizes], float],
    curve_s: Callable[[Sizes], float],
    units_per_s: float,
    capped: bool = True,
) -> float:
    """Return the seconds of one op by its table of measured rates.

    Args:
        table: the measured rates, as shares of `units_per_s`.
        sizes: the lengths of the op, in the order of the table's.
        work: FLOPs or bytes of the op, as a function of its lengths.
        curve_s: seconds by the cost model's curve, as a function of the lengths.
        units_per_s: the declared FLOP/s or bytes/s.
        capped: True limits the rate to `units_per_s`. False for collectives, whose rate may exceed a link's.

    >>> from planc.ir.op_tables import OpTable
    >>> stream = OpTable(op="stream", sizes=((1024,), (4096,)), shares=(0.1, 0.4))
    >>> found = lambda n: table_s(stream, (n,), work=lambda s: s[0], curve_s=lambda s: s[0] / 1e6, units_per_s=1e6)
    >>> [f"{found(n) * 1e3:.2f} ms" for n in (512, 1024, 2048, 4096, 8192)]  # half the time of 1024, at the same rate
    ['5.12 ms', '10.24 ms', '10.24 ms', '10.24 ms', '20.48 ms']
    """
    inside = tuple(min(max(size, along[0]), along[-1]) for size, along in zip(sizes, table.lengths, strict=True))
    seconds = work(inside) / (_share(table, inside) * units_per_s)
    if inside != sizes:
        seconds *= curve_s(sizes) / curve_s(inside)
    return max(seconds, work(sizes) / units_per_s) if capped else seconds


def _share(table: OpTable, sizes: Sizes) -> float:
    """Return the rate at `sizes`, which lie inside the grid, as a share of `units_per_s` (see `table_s`)."""
    lengths, shares = table.logs
    corners = [_around(along, log(size)) for along, size in zip(lengths, sizes, strict=True)]
    strides = _strides(lengths)
    total = 0.0
    for corner in product(*corners):
        weight, index = 1.0, 0
        for (at, part), stride in zip(corner, strides, strict=True):
            weight *= part
            index += at * stride
        total += weight * shares[index]
    return exp(total)


def _around(along: Sequence[float], value: float) -> tuple[tuple[int, float], ...]:
    """Return the indices of the neighbours of `value` in the sorted values `along`, each with its interpolation weight.
    If `value` is itself in `along`, the result has one index."""
    above = bisect_right(along, value)
    if above == len(along):
        return ((above - 1, 1.0),)
    below = max(0, above - 1)
    part = (value - along[below]) / (along[above] - along[below]) if above > below else 0.0
    return ((below, 1.0 - part), (above, part)) if part > 0 else ((below, 1.0),)


def _strides(lengths: Sequence[Sequence[float]]) -> list[int]:
    """Return the stride of each dim of the grid in the flat list of measured points, which is in row-major order."""
    strides, stride = [], 1
    for along in reversed(lengths):
        strides.append(stride)
        stride *= len(along)
    return strides[::-1]
