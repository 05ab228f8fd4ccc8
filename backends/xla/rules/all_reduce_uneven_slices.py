"""A gradient sharded along columns is all-reduced if its rows do not divide into a suitable number of equal slices.

Such a sum is not padded: the TPU compiler splits it along its rows into equal slices of whole tiles of 8 rows. A slice
and four shards of it must fit in the chip's buffer. If the number of tiles has no such divisor, or only one that gives
many more slices than needed, the compiler all-reduces and slices: twice the bytes. Read from 110 single sums of 4 to
607 MiB over 2 to 32 ranks of v4, v5e, v5p, v6e and 7x, with rows whose tiles are a prime, or two primes times a small
number. A vocabulary of 151,936 over 4 or 2 ranks has 4 or 8 x 1,187 tiles: embedding and head are both all-reduced;
128,256 over 4 has 24 x 167, and over 8 12 x 167, which are reduce-scattered.
"""

from __future__ import annotations

from math import ceil, prod

from planc.backends.xla.analysis.layouts import cut
from planc.backends.xla.rules.pad_scattered_rows import LANES, TILE_ROWS
from planc.backends.xla.rules.rule import Rows, changed, of_experts, platform
from planc.ir.collective import DTYPE_BYTES, Collective
from planc.ir.sharding import Sharded

NAME = "all_reduce_uneven_slices"
BUFFER_MIB = {"v4": 14.0, "v5e": 14.0, "v5p": 14.0, "v6e": 28.8, "tpu7x": 24.0}
"""Buffer by chip, for a slice and PARTS shards of it. Bracketed with prime sizes: v5p 13.9 to 14.2 (over 2, 4, 8, 16
and 32 ranks), v6e 28.3 to 29.4 (the same); over 8 ranks only, v4 and v5e 13.7 to 14.8, 7x 23.8 to 24.6."""
PARTS = 4
SLICE_MIB = {"v4": 1.7, "v5e": 1.7, "v5p": 1.7, "v6e": 3.45, "tpu7x": 3.6}
"""Cost by chip of each slice above the minimum, as MiB of the sum and two shards of it. Bracketed with sums of 211
slices: v5p 1.65 to 1.81, v6e 3.40 to 3.51; 7x 3.50 to 3.72 (with embeddings of Llama 70B over 32 ranks); v4 and v5e are
assumed equal to v5p."""
PARTS_SENT = 2


def apply(sharded: Sharded, rows: Rows) -> Rows:
    if platform(sharded) != "tpu" or sharded.plan.cluster.chip.name not in BUFFER_MIB:
        return rows
    return tuple(changed(row, NAME, op="all_reduce") if not _slices(sharded, row) else row for row in rows)


def _slices(sharded: Sharded, row: Collective) -> bool:
    """Return False if `row` reduce-scatters a gradient along columns in slices that do not fit in the chip's buffer;
    True for any other collective."""
    height = rows_above_columns(sharded, row)
    if not height:
        return True
    summed_mib = row.buffer_bytes / DTYPE_BYTES[row.dtype] * DTYPE_BYTES["fp32"] / 2**20
    return fits_in_slices(sharded.plan.cluster.chip.name, row.group_size, height, summed_mib)


def fits_in_slices(chip: str, ranks: int, height: int, summed_mib: float) -> bool:
    """True if the compiler of `chip` reduce-scatters a sum of `height` rows and `summed_mib` MiB in fp32 over `ranks`
    ranks along its columns."""
    fewest = ceil(summed_mib * (1 + PARTS / ranks) / BUFFER_MIB[chip])
    further = equal_slices(ceil(height / TILE_ROWS), fewest) - fewest
    return 0 <= further * SLICE_MIB[chip] <= summed_mib * (1 + PARTS_SENT / ranks)


def rows_above_columns(sharded: Sharded, row: Collective) -> int:
    """Return the number of rows of the gradient that `row` reduce-scatters along columns; 0 for any other
    collective."""
    plan, p = sharded.plan, sharded.param.get(row.tensor)
    if p is None or (row.carries, row.op) != ("grad", "reduce_scatter") or of_experts(sharded, row) or not p.axes():
        return 0
    place = cut(plan, p, "grads")
    local = [ceil(n / plan.mesh.size(*axes)) for n, axes in zip(plan.model.shape(p.param), p.compute, strict=True)]
    if not place or local[place] // row.group_size % LANES:
        return 0
    return prod(local[:place])


def equal_slices(tiles: int, fewest: int) -> int:
    """Return the smallest divisor of `tiles` (a number of equal slices of whole tiles) that is at least `fewest`; 0 if
    there is none.

    >>> equal_slices(24 * 167, 25), equal_slices(8 * 1187, 62)
    (167, 1187)
    """
    return next((n for n in range(fewest, tiles + 1) if tiles % n == 0), 0)
