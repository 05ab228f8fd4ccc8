"""Over every device of a torus the TPU compiler gathers parameters by summing: each rank adds its part to zeros.

An all-reduce sends twice what a gather does. Embedding and head that are stored in fp32 travel in that then; not those
that are stored in bf16 (a step over v4 4x4x4), nor a head that the program rounds first. Read from a step over all of
v5p 4x4x4, and from single gathers over 4x4x8 and v4 2x4x4. Over fewer devices they stay gathers (a step over v5p
2x2x4, single gathers over 2x2x2, 2x4x4 and 2x2x8), and most do over all of a plane (v6e 8x8), and where gradients stay
scattered over a whole machine (`all_reduce_whole_torus`).
"""

from __future__ import annotations

from planc.backends.xla.analysis.layouts import rounds_before_gathers
from planc.backends.xla.rules.all_reduce_whole_torus import sums_over_all
from planc.backends.xla.rules.rule import Rows, changed
from planc.ir.collective import DTYPE_BYTES, Collective
from planc.ir.sharding import Sharded

NAME = "gather_by_all_reduce"
DEVICES = 64
"""The fewest devices of a torus over which gathers were seen to be sums; over 32 they were not."""


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
    wide = row.buffer_bytes / DTYPE_BYTES[row.dtype] * DTYPE_BYTES[stored]
    return changed(row, NAME, op="all_reduce", dtype=stored, buffer_bytes=wide)
