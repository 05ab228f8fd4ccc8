"""In each iteration of the pipeline's loop two things travel, and back again in the backward.

A stage's result goes to the next rank (round to the first, where a rank has several stages), and one of the
microbatches that wait moves towards the first rank. Bytes are those of a rank on average: without a way
round one rank of them all sends nothing. Read from pp 4 with 8 microbatches: 44 permutes in 11 iterations.
"""

from __future__ import annotations

from dataclasses import replace

from planc.backends.xla.analysis.pipeline import chunks, iterations, pipelined
from planc.backends.xla.rules.rule import Rows, changed
from planc.ir.collective import Collective
from planc.ir.sharding import Sharded

NAME = "permute_each_iteration"


def apply(sharded: Sharded, rows: Rows) -> Rows:
    plan = sharded.plan
    if not pipelined(plan):
        return rows
    assert plan.split is not None
    sends = [row for row in rows if _is_pipeline_send(sharded, row)]
    some = (plan.pipeline - 1) / plan.pipeline
    shares = {"": 1.0 if chunks(plan) > 1 else some, " in waiting": some}
    again = [
        replace(
            changed(row, NAME, count=iterations(plan), buffer_bytes=row.buffer_bytes * share),
            stage=stage,
            tensor=row.tensor + said,
        )
        for stage in range(plan.pipeline)
        for row in {row.phase: row for row in sends}.values()
        for said, share in shares.items()
    ]
    return (*(row for row in rows if not _is_pipeline_send(sharded, row)), *again)


def _is_pipeline_send(sharded: Sharded, row: Collective) -> bool:
    split = sharded.plan.split
    return split is not None and row.op == "send_recv" and row.axes == (split.axis,)
