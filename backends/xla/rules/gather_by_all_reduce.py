"""Over every device of a torus that does not wrap around, the TPU compiler gathers parameters by an all-reduce.

The all-reduce is of zero-padded shards and sends twice as much as an all-gather. Embedding and head stored in fp32 are
also sent in fp32; those stored in bf16 are not, nor is a head that the program casts first. Read from steps over all of
v5p and v4 4x4x4, and from single gathers over 4x4x8 and v4 2x4x4, all described to the compiler without their wraps;
with them (a step over v5p 4x4x4) all-gathers stay. They stay too over fewer devices (a step over v5p 2x2x4, single
gathers over 2x2x2, 2x4x4 and 2x2x8), over most 2D tori (v6e 8x8), and on 7x.
"""

from __future__ import annotations

from planc.backends.xla.analysis.layouts import rounds_before_gathers
from planc.backends.xla.rules.rule import Rows, changed, in_dtype, platform
from planc.ir.collective import DTYPE_BYTES, Collective
from planc.ir.sharding import Sharded

NAME = "gather_by_all_reduce"
GATHERS = ("tpu7x",)
"""Chips whose compiler keeps the all-gather."""
DEVICES = 64
"""The smallest torus (devices) on which all-gathers became all-reduces; with 32 devices they did not."""


def apply(sharded: Sharded, rows: Rows) -> Rows:
    cluster = sharded.plan.cluster
    large = platform(sharded) == "tpu" and len(cluster.shape) == 3 and cluster.devices >= DEVICES
    if not large or goes_around(sharded) or cluster.chip.name in GATHERS:
        return rows
    return tuple(_as_all_reduce(sharded, row) if _gathers(sharded, row) else row for row in rows)


def goes_around(sharded: Sharded) -> bool:
    """True if the torus of `sharded` wraps around in every dim. False for other frameworks, whose published runs were
    fitted with this rule."""
    return sharded.stack.own and all(sharded.plan.cluster.wrap)


def _gathers(sharded: Sharded, row: Collective) -> bool:
    return row.carries == "param" and row.op == "all_gather" and row.group_size == sharded.plan.cluster.devices


def _as_all_reduce(sharded: Sharded, row: Collective) -> Collective:
    stored = sharded.plan.store_dtype("params")
    rounded = row.section == "last" and rounds_before_gathers(sharded.plan)
    if row.section not in ("first", "last") or rounded or DTYPE_BYTES[stored] <= DTYPE_BYTES[row.dtype]:
        return changed(row, NAME, op="all_reduce")
    return in_dtype(row, NAME, stored, op="all_reduce")
