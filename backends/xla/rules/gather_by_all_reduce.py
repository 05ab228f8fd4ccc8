"""Over every device of a torus the TPU compiler gathers parameters by an all-reduce of zero-padded shards.

An all-reduce sends twice as much as an all-gather. Embedding and head stored in fp32 are also sent in fp32; those
stored in bf16 are not (a step over v4 4x4x4), nor is a head that the program casts first. Read from a step over all of
v5p 4x4x4, and from single gathers over 4x4x8 and v4 2x4x4. All-gathers over fewer devices stay (a step over v5p 2x2x4,
single gathers over 2x2x2, 2x4x4 and 2x2x8), and so do most over all of a 2D torus (v6e 8x8), and those on chips that
keep reduce-scatters over the whole torus (`all_reduce_whole_torus`).
"""

from __future__ import annotations

from planc.backends.xla.analysis.layouts import rounds_before_gathers
from planc.backends.xla.rules.all_reduce_whole_torus import sums_over_all
from planc.backends.xla.rules.rule import Rows, changed, in_dtype
from planc.ir.collective import DTYPE_BYTES, Collective
from planc.ir.sharding import Sharded

NAME = "gather_by_all_reduce"
DEVICES = 64
"""The smallest torus (devices) on which all-gathers became all-reduces; with 32 devices they did not."""


def apply(sharded: Sharded, rows: Rows) -> Rows:
    cluster = sharded.plan.cluster
    if not sums_over_all(sharded) or len(cluster.shape) < 3 or cluster.devices < DEVICES:
        return rows
    return tuple(_as_all_reduce(sharded, row) if _gathers(sharded, row) else row for row in rows)


def _gathers(sharded: Sharded, row: Collective) -> bool:
    return row.carries == "param" and row.op == "all_gather" and row.group_size == sharded.plan.cluster.devices


def _as_all_reduce(sharded: Sharded, row: Collective) -> Collective:
    stored = sharded.plan.store_dtype("params")
    rounded = row.section == "last" and rounds_before_gathers(sharded.plan)
    if row.section not in ("first", "last") or rounded or DTYPE_BYTES[stored] <= DTYPE_BYTES[row.dtype]:
        return changed(row, NAME, op="all_reduce")
    return in_dtype(row, NAME, stored, op="all_reduce")
