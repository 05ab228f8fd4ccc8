"""A gradient that is sharded over every device of a torus is all-reduced and sliced: twice the bytes.

Read from sums over all of v5p 2x2x2 and 4x4x4, v4 2x2x4 (of two devices a chip), and v5e and v6e 4x4, 8x8 and 16x16.
Over 2D tori twice as long as wide (v5e and v6e 2x4, 4x8, 8x16) and over all of 7x 2x2x4 it stays a reduce-scatter. With
several slices the same holds over all of one slice (two of v5p 2x2x2). All these programs had no options for their
compiler: with those of v5p and v6e, `nd_reduce_scatter` keeps it (two layers of Llama 8B over all of v5p 4x4x4).
"""

from __future__ import annotations

from planc.backends.xla.analysis.compiler_options import scatters_by_sparse_cores
from planc.backends.xla.analysis.slices import across
from planc.backends.xla.rules.rule import Rows, changed, platform
from planc.ir.collective import Collective
from planc.ir.hardware import Cluster
from planc.ir.plan import Plan
from planc.ir.sharding import Sharded

NAME = "all_reduce_whole_torus"
SCATTERS = ("tpu7x",)
"""Chips whose compiler keeps the reduce-scatter by itself."""


def apply(sharded: Sharded, rows: Rows) -> Rows:
    if not sums_over_all(sharded):
        return rows
    return tuple(changed(row, NAME, op="all_reduce") if _spans_whole_torus(sharded.plan, row) else row for row in rows)


def sums_over_all(sharded: Sharded) -> bool:
    """True if XLA runs a reduce-scatter over all devices of a torus, as in `sharded`, by an all-reduce."""
    cluster = sharded.plan.cluster
    scatters = cluster.chip.name in SCATTERS or scatters_by_sparse_cores(sharded) or _is_uneven_plane(cluster)
    return platform(sharded) == "tpu" and not scatters


def _spans_whole_torus(plan: Plan, row: Collective) -> bool:
    of_torus = row.group_size == plan.cluster.devices_per_node and not across(plan, row.axes)
    return row.carries == "grad" and row.op == "reduce_scatter" and of_torus


def _is_uneven_plane(cluster: Cluster) -> bool:
    return len(cluster.shape) == 2 and cluster.shape[0] != cluster.shape[1]
