"""Over every device of a torus the TPU compiler gathers parameters by summing: each rank adds its part to zeros.

An all-reduce sends twice what a gather does. Embedding and head travel in fp32 then. Read from a step over all of
v5p 4x4x4. Over all of a plane (v6e 8x8) most stay gathers, and so they do where gradients stay scattered over a whole
machine (`all_reduce_whole_torus`).
"""

from __future__ import annotations

from planc.backends.xla.rules.all_reduce_whole_torus import sums_over_all
from planc.backends.xla.rules.rule import Rows, changed
from planc.ir.collective import DTYPE_BYTES, Collective
from planc.ir.sharding import Sharded

NAME = "gather_by_all_reduce"


def apply(sharded: Sharded, rows: Rows) -> Rows:
    if not sums_over_all(sharded) or len(sharded.plan.cluster.shape) < 3:
        return rows
    return tuple(_as_all_reduce(row) if _gathers(sharded, row) else row for row in rows)


def _gathers(sharded: Sharded, row: Collective) -> bool:
    return row.carries == "param" and row.op == "all_gather" and row.group_size == sharded.plan.cluster.devices


def _as_all_reduce(row: Collective) -> Collective:
    if row.section not in ("first", "last"):
        return changed(row, NAME, op="all_reduce")
    wide = row.buffer_bytes / DTYPE_BYTES[row.dtype] * DTYPE_BYTES["fp32"]
    return changed(row, NAME, op="all_reduce", dtype="fp32", buffer_bytes=wide)
