"""In each tick of a pipeline every rank runs a stage, even without a microbatch (in the pipeline bubble).

All ranks run one program: as many layers as the longest stage has, in chunks x microbatches + ranks - 1 forward ticks
and as many backward ticks (chunks: stages per rank). Read from pp 2 > fsdp 2, 4 microbatches: a rank with two layers
gathers and sums ten; from pp 2 > dp 2 with 2 chunks: nine for one layer.

If a stage has one layer, there is no loop over layers: the forward and the backward of a tick share the explicit
gathers of experts. Loops of one tick are unrolled and share them too (stage 2 > fsdp 4, 1F1B: five gathers, not ten).
"""

from __future__ import annotations

from dataclasses import replace

from planc.backends.xla.analysis.pipeline import chunks, layers_of_a_stage, lockstep, pipelined
from planc.backends.xla.rules.rule import Rows, changed, of_experts
from planc.ir.collective import Collective
from planc.ir.sharding import Sharded
from planc.sharding.stage_assignment import load_of

NAME = "fill_and_drain"


def apply(sharded: Sharded, rows: Rows) -> Rows:
    if not pipelined(sharded.plan):
        return rows
    fullest = _fullest(sharded)
    of_one = [row for row in rows if fullest.get(row.section) == row.stage]
    others = [row for row in rows if row.section not in fullest]
    again = [_of_all_ticks(sharded, row) for row in of_one]
    return (*others, *(replace(row, stage=stage) for stage in range(sharded.plan.pipeline) for row in again))


def _fullest(sharded: Sharded) -> dict[str, int]:
    """Return, for each kind of block, the first pipeline rank that has the most layers of this kind."""
    plan = sharded.plan
    loads = [load_of(plan, rank) for rank in range(plan.pipeline)]
    return {kind: max(range(plan.pipeline), key=lambda r: loads[r].get(kind, 0)) for kind in sharded.model.blocks}


def _of_all_ticks(sharded: Sharded, row: Collective) -> Collective:
    """Return `row` as issued by a rank with as many layers as the longest stage: in each tick, or for parameters that
    are gathered or updated once, once a step."""
    plan = sharded.plan
    each, of_rank = layers_of_a_stage(plan), load_of(plan, row.stage)[row.section]
    if row.carries == "param" and (row.phase == "optimizer" or plan.gather_per == "step"):
        return changed(row, NAME, count=row.count * each * chunks(plan) // of_rank)
    ticks = lockstep(plan).forward_ticks
    if row.carries == "param" and row.phase == "backward" and of_experts(sharded, row) and each * chunks(plan) == 1:
        alone = lockstep(plan).first_backward  # ticks with a backward and no forward
        ticks = alone if alone > 1 else 0
    return changed(row, NAME, count=row.count * each * ticks // (of_rank * plan.microbatches))
