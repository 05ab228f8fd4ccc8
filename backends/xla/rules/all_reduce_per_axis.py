"""Virtual CPU devices all-reduce a gradient over the batch's axes and over the sequence's axes in separate calls.

Read from dp 2 > tp 2 with the sequence over tp: norms and routers are summed once over dp and once over tp. Shards of a
gradient that `linear` lays out itself are summed over all remaining axes in one call (replica 2 > fsdp 2 > cp 2: over
replica and cp). Experts are summed explicitly, over all axes at once.
"""

from __future__ import annotations

from dataclasses import replace

from planc.backends.xla.analysis.layouts import laid_out_at_once
from planc.backends.xla.rules.rule import Rows, changed, of_experts, platform
from planc.ir.collective import Collective
from planc.ir.sharding import Sharded

NAME = "all_reduce_per_axis"


def apply(sharded: Sharded, rows: Rows) -> Rows:
    if platform(sharded) == "tpu":
        return rows
    parts = {_key(r) for r in rows if r.op == "reduce_scatter"} & laid_out_at_once(sharded)
    return tuple(part for row in rows for part in ((row,) if _key(row) in parts else split_by_axis(sharded, row)))


def _key(row: Collective) -> tuple[str, str]:
    return row.section, row.tensor


def split_by_axis(sharded: Sharded, row: Collective) -> Rows:
    """Return a gradient's all-reduce over the batch's and other axes as two, one over each; keep any other `row` as it
    is."""
    batch = tuple(a for a in row.axes if a in sharded.plan.data_axes)
    rest = tuple(a for a in row.axes if a not in batch)
    if row.carries != "grad" or row.op != "all_reduce" or not batch or not rest or of_experts(sharded, row):
        return (row,)
    mesh = sharded.plan.mesh
    return tuple(changed(replace(row, axes=axes, group_size=mesh.size(*axes)), NAME) for axes in (batch, rest))
