"""A gradient whose scattered parts are too thin to be cut by buffers is summed whole and sliced: twice the wire.

A sum that is scattered along rows goes through the buffer in slices of every rank's rows (see
`pad_scattered_rows`). Where a slice would be less than half a tile of rows, the TPU compiler makes no scatter of it.
Read from Llama steps: 5.3 and 6.1 rows a slice are scattered (70B over 512 and 64 ranks of v5p), 3.0 and 1.5 are
not (8B's head over 64 ranks of v6e, 70B's feed-forward over 512 of v5p). All sums of 16,384 rows are scattered, those
of 0.7 rows a slice too (405B over 256 and 512 ranks of v5p), and of 8,192 over the same 256 ranks not: the rule ends
there.
"""

from __future__ import annotations

from math import ceil

from planc.backends.xla.rules.pad_scattered_rows import BUFFER_MIB, TILE_ROWS, buffers, rows_of_part
from planc.backends.xla.rules.rule import Rows, changed, platform
from planc.ir.collective import Collective
from planc.ir.sharding import Sharded

NAME = "all_reduce_thin_shards"
ROWS_ALL = 8192
"""The longest sum, in rows of all ranks, that was seen summed whole."""


def apply(sharded: Sharded, rows: Rows) -> Rows:
    if platform(sharded) != "tpu" or sharded.plan.cluster.chip.name not in BUFFER_MIB:
        return rows
    return tuple(changed(row, NAME, op="all_reduce") if _has_thin_slices(sharded, row) else row for row in rows)


def _has_thin_slices(sharded: Sharded, row: Collective) -> bool:
    height = rows_of_part(sharded, row)
    slices = ceil(buffers(sharded, row)) if height else 1
    return slices > 1 and height / slices < TILE_ROWS / 2 and height * row.group_size <= ROWS_ALL
