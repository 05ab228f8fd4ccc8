"""The TPU compiler all-reduces the head's gradient over replicas once a step, not in each microbatch.

Each microbatch reduce-scatters this gradient over the ranks that shard it; the sum over replicas is hoisted out of the
loop over microbatches. Gradients of the layers are summed in inner loops and are not hoisted. Read from Mixtral (fsdp
16 > ep 8) and DeepSeek-V3 (fsdp 64 > ep 16) on v5p with four microbatches.
"""

from __future__ import annotations

from dataclasses import replace

from planc.backends.xla.analysis.pipeline import pipelined
from planc.backends.xla.rules.rule import Rows, platform
from planc.ir.collective import Collective
from planc.ir.sharding import Sharded

NAME = "all_reduce_head_once"


def apply(sharded: Sharded, rows: Rows) -> Rows:
    if platform(sharded) != "tpu" or sharded.plan.microbatches == 1 or pipelined(sharded.plan):
        return rows
    scattered = {r.tensor for r in rows if r.carries == "grad" and r.op == "reduce_scatter"}
    return tuple(
        _once(sharded, row) if row.tensor in scattered and _of_head_over_copies(sharded, row) else row for row in rows
    )


def _of_head_over_copies(sharded: Sharded, row: Collective) -> bool:
    param = sharded.model.param.get(row.tensor)
    summed = row.carries == "grad" and row.op == "all_reduce" and param is not None
    return summed and param is not None and "last" in param.sections and len(sharded.model.shape(param)) > 1


def _once(sharded: Sharded, row: Collective) -> Collective:
    count = row.count // sharded.plan.microbatches
    return replace(row, count=count, per="step", realised_by=(*row.realised_by, NAME))
