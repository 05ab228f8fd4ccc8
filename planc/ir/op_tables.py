"""Measured rates of a machine, by op and size: the `measured` sentences of a hardware file."""

from __future__ import annotations

from functools import cached_property
from math import log
from typing import Literal

from planc.diag.fast_dataclass import dataclass
from planc.ir.base import Value
from planc.ir.field_types import Count, NameOrEmpty, OfWhole, Positive

TableOp = Literal[
    "matmul",
    "attention",
    "attention_backward",
    "stream",
    "all_gather",
    "reduce_scatter",
    "all_reduce",
    "all_to_all",
]
SIZES: dict[TableOp, tuple[str, ...]] = {
    "matmul": ("m", "n", "k"),
    "attention": ("sequences", "heads", "tokens", "head_dim"),
    "attention_backward": ("sequences", "heads", "tokens", "head_dim"),
    "stream": ("bytes",),
    "all_gather": ("bytes",),
    "reduce_scatter": ("bytes",),
    "all_reduce": ("bytes",),
    "all_to_all": ("bytes",),
}
"""Sizes of each op: a matmul is [m, k] by [k, n]; a stream's bytes are those read and written; a collective's are the
larger of its input and output on one device."""
BY_DTYPE: tuple[TableOp, ...] = ("matmul", "attention", "attention_backward")
"""Ops with one table per dtype. Their rates are in FLOP/s; those of the others in bytes per second."""
COLLECTIVES: tuple[TableOp, ...] = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")
MOST_POINTS = 4000
"""Largest number of measured points of one table."""


@dataclass(frozen=True, kw_only=True)
class OpTable(Value):
    """The measured rates of one op. Its sizes form a full grid: every combination of the lengths along each dim."""

    op: TableOp
    dtype: NameOrEmpty = ""
    members: Count = 0
    """Devices of a collective's group; 0 for other ops."""
    sizes: tuple[tuple[Positive, ...], ...]
    """The points of the grid, ascending, with the last size varying fastest."""
    shares: tuple[OfWhole, ...]
    """The rate at each point as a fraction of the declared rate: a device's peak in the dtype, its memory bandwidth, or
    the bandwidth of a link or level. A machine with a higher peak thus has higher rates."""

    @cached_property
    def lengths(self) -> tuple[tuple[int, ...], ...]:
        """The distinct lengths along each dim of the grid of sizes, ascending."""
        return tuple(tuple(sorted({*along})) for along in zip(*self.sizes, strict=True))

    @cached_property
    def logs(self) -> tuple[tuple[tuple[float, ...], ...], tuple[float, ...]]:
        """Logarithms of `lengths` and of `shares`, for interpolation."""
        return tuple(tuple(map(log, along)) for along in self.lengths), tuple(map(log, self.shares))


def table_of(tables: tuple[OpTable, ...], op: TableOp, dtype: str = "", members: int = 0) -> OpTable | None:
    """Return the table of `op` in `tables`, for a dtype or for groups of `members` devices; None if there is none."""
    return next((t for t in tables if t.op == op and t.dtype == dtype and t.members == members), None)
