"""Every iteration of the pipeline's loop runs a stage, also where no microbatch is in it yet or any more.

Layers run in chunks x microbatches + ranks - 1 iterations. Read from pp 2 > fsdp 2, 4 microbatches, GPipe: a
layer's gathers and sums ten times for two layers a rank; pp 2 > dp 2, circular with 2 chunks: nine for one.
"""

from __future__ import annotations

from planc.backends.xla.analysis.pipeline import chunks, iterations, pipelined
from planc.backends.xla.rules.rule import Rows, changed
from planc.ir.collective import Collective
from planc.ir.sharding import Sharded

NAME = "fill_and_drain"


def apply(sharded: Sharded, rows: Rows) -> Rows:
    if not pipelined(sharded.plan):
        return rows
    return tuple(_each_iteration(sharded, row) if _in_each_microbatch(sharded, row) else row for row in rows)


def _in_each_microbatch(sharded: Sharded, row: Collective) -> bool:
    """True for a row of a layer that happens in each microbatch, not for a gather once a step."""
    once = row.carries == "param" and (row.phase == "optimizer" or sharded.plan.gather_per == "step")
    return row.section in sharded.model.blocks and not once


def _each_iteration(sharded: Sharded, row: Collective) -> Collective:
    useful = chunks(sharded.plan) * sharded.plan.microbatches
    return changed(row, NAME, count=row.count * iterations(sharded.plan) // useful)
