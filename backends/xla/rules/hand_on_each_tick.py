"""In each tick of a pipeline, activations are sent to the next rank and gradients to the previous one (ppermute).

The ranks shard the input of the first stage and the input of the loss: a microbatch is gathered before the first stage
and scattered after the last one, and its gradients likewise. Ranks with one stage do so in every tick in which some
rank has a forward or a backward, ranks with several only when a microbatch enters or leaves. Bytes are averaged over
ranks: in a chain one rank sends nothing. Read from pp 4, 8 microbatches, 1F1B: 22 permutes, 19 gathers and 19
all-to-alls of 12,288 bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from planc.backends.xla.analysis.pipeline import chunks, lockstep, pipelined
from planc.backends.xla.rules.rule import Rows, changed
from planc.ir.collective import Collective, CollectiveOp, Phase
from planc.ir.sharding import Sharded

NAME = "hand_on_each_tick"


def apply(sharded: Sharded, rows: Rows) -> Rows:
    plan = sharded.plan
    if not pipelined(plan):
        return rows
    sends = {row.phase: row for row in rows if _is_pipeline_send(sharded, row)}
    again = [
        replace(row, stage=stage)
        for stage in range(plan.pipeline)
        for phase, send in sends.items()
        for row in _handed(sharded, phase, send)
    ]
    return (*(row for row in rows if not _is_pipeline_send(sharded, row)), *again)


def _handed(sharded: Sharded, phase: Phase, send: Collective) -> Iterator[Collective]:
    """Yield the collectives that replace `send` in one direction (`phase`, forward or backward): the sends between
    stages, and the gathers and all-to-alls where microbatches enter and leave the pipeline."""
    plan = sharded.plan
    ticks, several = lockstep(plan), chunks(plan) > 1
    some = 1.0 if several else (plan.pipeline - 1) / plan.pipeline
    unrolled = phase == "backward" and ticks.first_backward == 1  # nobody reads what a last loop of one tick sends
    yield changed(send, NAME, count=ticks.forward_ticks - unrolled, buffer_bytes=send.buffer_bytes * some)
    ends = plan.microbatches if several else ticks.forward_ticks
    from_loss = ends if phase == "backward" and ticks.forwards_first else plan.microbatches
    calls: dict[CollectiveOp, int] = (
        {"all_gather": ends, "all_to_all": plan.microbatches}
        if phase == "forward"
        else {"all_gather": from_loss, "all_to_all": ends}
    )
    for op, count in calls.items():
        yield changed(replace(send, op=op, tensor=f"{send.tensor} in shares"), NAME, count=count)


def _is_pipeline_send(sharded: Sharded, row: Collective) -> bool:
    split = sharded.plan.split
    return split is not None and row.op == "send_recv" and row.axes == (split.axis,)
