"""A gradient that is reduce-scattered along its rows is padded, and its shards are corrected by shifts to neighbours.

The TPU compiler runs such a sum through a buffer of fixed size: the rows of each rank's shard are split into as many
slices as the whole sum fills buffers, of whole tiles of 8 rows each. The shards then start too late, by an offset that
grows from rank to rank; the missing rows come in shifts by one rank, two ranks and so on, each of at most one shard
(XLA's halo exchange). This model fits 15 single sums of 16 to 500 MiB over 4 to 64 ranks of v5p and v6e, and the
gradients of Llama blocks there. Sums scattered along columns are not padded. Columns become rows if the sum is
transposed: for a weight with no other sharding, and if a rank's columns do not fill whole lanes. Gradients of several
experts at once are not padded (16 experts a rank, DeepSeek-V3 on v5p); those of a single expert are reduce-scattered
without the expert dim, and padded like others. Shards of whole tiles are not padded where the SparseCores take the sum
(v5p: 16 to 224 rows, but not the 2,004 of a vocabulary; v6e: 64 rows of 3,584, but
not of 32,064).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil

from planc.backends.xla.analysis.compiler_options import scatters_by_sparse_cores
from planc.backends.xla.analysis.expert_mesh import XlaExpertAxes
from planc.backends.xla.analysis.layouts import cut
from planc.backends.xla.rules.rule import Rows, changed, of_experts, platform
from planc.ir.collective import DTYPE_BYTES, Collective
from planc.ir.sharding import ParamSharding, Sharded

NAME = "pad_scattered_rows"
TILE_ROWS, LANES = 8, 128
BUFFER_MIB = {"v4": 11.0, "v5e": 12.0, "v5p": 11.0, "v6e": 24.0}
"""Buffer by chip, as bracketed by observed paddings: v5p 10.75 to 11.2 in training steps (6.3 for a sum alone), v6e
23.8 to 24.4, v5e 8 to 18.7 (one step, which pads nothing); v4 is assumed equal to v5p, which three sums of a Llama
block's sizes confirm and seven of other sizes do not. 7x did not pad the sums that were read."""


def apply(sharded: Sharded, rows: Rows) -> Rows:
    if platform(sharded) != "tpu" or sharded.plan.cluster.chip.name not in BUFFER_MIB:
        return rows
    return tuple(made for row in rows for made in _padded(sharded, row))


def _padded(sharded: Sharded, row: Collective) -> Iterator[Collective]:
    height = rows_of_part(sharded, row)
    padded = padded_rows(height, buffers(sharded, row)) if height else 0
    if not height or padded == height:
        yield row
        return
    yield changed(row, NAME, buffer_bytes=row.buffer_bytes * padded / height)
    shifted = shifted_rows(height, padded, row.group_size) * row.buffer_bytes / row.group_size / height
    yield replace(row, op="send_recv", buffer_bytes=shifted, realised_by=(*row.realised_by, NAME))


def rows_of_part(sharded: Sharded, row: Collective) -> int:
    """Return the number of rows of a rank's shard of the gradient that `row` (one collective of the prediction)
    reduce-scatters along rows through the buffer; 0 for any other collective, and for whole tiles on SparseCores."""
    plan, p = sharded.plan, sharded.param.get(row.tensor)
    place = cut(plan, p, "grads") if p is not None and row.carries == "grad" and row.op == "reduce_scatter" else None
    if p is None or place is None:
        return 0
    if of_experts(sharded, row):
        if not XlaExpertAxes(sharded).alone:
            return 0
        place -= 1
    length: int = plan.model.shape(p.param)[place] // plan.mesh.size(*p.compute[place]) // row.group_size
    if scatters_by_sparse_cores(sharded) and _in_whole_tiles(sharded, p, place, length, row.dtype):
        return 0
    return 0 if place > 0 and p.axes() and length % LANES == 0 else length


def _in_whole_tiles(sharded: Sharded, p: ParamSharding, place: int, length: int, dtype: str) -> bool:
    """True if shards of `length` rows along dim `place` of `p`, and a rank's part of its other dim, fill whole tiles of
    8 x 128 (16 x 128 in bf16)."""
    plan = sharded.plan
    shape = zip(plan.model.shape(p.param), p.compute, strict=True)
    local = [ceil(n / plan.mesh.size(*axes)) for n, axes in shape]
    width = local[place - 1] if place else local[-1]
    return length % (TILE_ROWS * DTYPE_BYTES["fp32"] / DTYPE_BYTES[dtype]) == 0 and width % LANES == 0


def buffers(sharded: Sharded, row: Collective) -> float:
    """Return the size in fp32 of the sum in `row`, in units of the chip's buffer."""
    summed_bytes = row.buffer_bytes / DTYPE_BYTES[row.dtype] * DTYPE_BYTES["fp32"]
    return summed_bytes / 2**20 / BUFFER_MIB[sharded.plan.cluster.chip.name]


def padded_rows(height: int, buffers: float) -> int:
    """Return the number of rows of a rank's shard of `height` rows, padded to split into slices of whole tiles.

    `buffers` is the size of the whole sum divided by the chip's buffer; rounded up, it is the largest number of slices.
    """
    tiles, slices = ceil(height / TILE_ROWS), ceil(buffers)
    if slices == 1 or height < TILE_ROWS:
        return height
    each = ceil(tiles / slices)
    return ceil(tiles / each) * each * TILE_ROWS


def shifted_rows(height: int, padded: int, ranks: int) -> float:
    """Return the average number of rows that each of `ranks` sends to turn shards of `padded` rows into shards of
    `height` rows, by shifts to neighbours.

    The last rank misses (padded - height) x (ranks - 1) rows, and all ranks shift by the same distances.
    """
    missing, sent, distance = (padded - height) * (ranks - 1), 0.0, 1
    while missing > 0:
        sent += min(missing, padded) * (ranks - distance) / ranks
        missing, distance = missing - padded, distance + 1
    return sent
