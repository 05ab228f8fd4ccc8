"""Gradients kept whole are summed in every microbatch: each iteration of the loop ends with whole sums.

torch keeps unreduced sums and reduces once a step; an array of XLA has no such state. Read from
dp 2 > tp 2, 4 microbatches: 1657872 bytes over dp, four times those of one sum.
"""

from __future__ import annotations

from planc.backends.xla.rules.rule import Rows, changed
from planc.ir.collective import Collective
from planc.ir.sharding import Sharded

NAME = "all_reduce_per_microbatch"


def apply(sharded: Sharded, rows: Rows) -> Rows:
    return tuple(_per_microbatch(sharded, row) if _reduced_by_optimizer(row) else row for row in rows)


def _reduced_by_optimizer(row: Collective) -> bool:
    return row.carries == "grad" and row.phase == "optimizer"


def _per_microbatch(sharded: Sharded, row: Collective) -> Collective:
    """A sum that only the optimizer wants divided is whole until the update slices it."""
    count = row.count * sharded.plan.microbatches
    return changed(row, NAME, op="all_reduce", phase="backward", per="microbatch", count=count)
