"""A gradient whose shards are too thin to split between buffers is all-reduced and sliced: twice the bytes.

A reduce-scatter along rows goes through a buffer in slices of every rank's rows (see `pad_scattered_rows`). If a slice
would have less than half a tile of rows, the TPU compiler emits an all-reduce. Read from Llama steps: 5.3 and 6.1 rows
per slice are reduce-scattered (70B over 512 and 64 ranks of v5p), 3.0 and 1.5 are not (8B's head over 64 ranks of v6e,
70B's feed-forward over 512 of v5p). All sums of 16,384 rows are reduce-scattered, even with 0.7 rows per slice (405B
over 256 and 512 ranks of v5p), but sums of 8,192 rows over the same 256 ranks are not: the rule stops there.
"""

from __future__ import annotations

from math import ceil

from planc.backends.xla.rules.pad_scattered_rows import BUFFER_MIB, TILE_ROWS, buffers, rows_of_part
from planc.backends.xla.rules.rule import Rows, changed, platform
from planc.ir.collective import Collective
from planc.ir.sharding import Sharded

NAME = "all_reduce_thin_shards"
ROWS_ALL = 8192
"""The longest sum, in rows of all ranks, that was seen all-reduced."""


def apply(sharded: Sharded, rows: Rows) -> Rows:
    if platform(sharded) != "tpu" or sharded.plan.cluster.chip.name not in BUFFER_MIB:
        return rows
    return tuple(changed(row, NAME, op="all_reduce") if _has_thin_slices(sharded, row) else row for row in rows)


def _has_thin_slices(sharded: Sharded, row: Collective) -> bool:
    height = rows_of_part(sharded, row)
    slices = ceil(buffers(sharded, row)) if height else 1
    return slices > 1 and height / slices < TILE_ROWS / 2 and height * row.group_size <= ROWS_ALL
