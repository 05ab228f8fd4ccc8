"""The pipeline of the XLA target: all ranks run the same ticks (SPMD), with stacks of layers sharded over the ranks."""

from __future__ import annotations

from planc.ir.plan import Plan
from planc.ir.sharding import Sharded
from planc.pipeline.lockstep import Lockstep

FORWARDS_FIRST = ("gpipe", "circular", "looped_bfs")
"""Schedules that run all forwards before the first backward."""
SCHEDULES = (*FORWARDS_FIRST, "1f1b", "interleaved_1f1b")
"""Schedules whose forwards visit the ranks in order and whose backward is not split into dgrad and wgrad."""


def pipelined(plan: Plan) -> bool:
    """True if the layers of `plan` are split over more than one rank."""
    return plan.split is not None and plan.pipeline > 1


def chunks(plan: Plan) -> int:
    """Return the number of stages per rank of `plan` (virtual stages); 1 without a pipeline."""
    return plan.split.chunks if plan.split is not None and pipelined(plan) else 1


def lockstep(plan: Plan) -> Lockstep:
    """Return the ticks of the pipeline of `plan`.

    With several stages per rank, a round is the number of microbatches that a rank runs through one stage before its
    next stage: all if the schedule runs forwards first, else the number of ranks, or more if the ranks do not divide
    the microbatches (`planc.pipeline.schedule.Shape.round`).
    """
    assert plan.split is not None
    first = plan.split.schedule in FORWARDS_FIRST
    microbatches, ranks, parts = plan.microbatches, plan.pipeline, chunks(plan)
    rounds = 1 if first else max(1, microbatches // ranks)
    each = max(ranks, -(-microbatches // rounds)) if parts > 1 else 1
    return Lockstep(ranks=ranks, chunks=parts, microbatches=microbatches, round=each, forwards_first=first)


def stack_axes(plan: Plan) -> tuple[tuple[str, ...], ...]:
    """Return the axes that shard each leading dim of the layers' parameters in the program of `plan`. The dims are
    [layers], or [chunks, layers of a chunk on all ranks] with several stages per rank; () without a pipeline."""
    if not pipelined(plan):
        return ()
    assert plan.split is not None
    return (*((),) * (chunks(plan) > 1), (plan.split.axis,))


def layers_of_a_stage(plan: Plan) -> int:
    """Return the number of layers of the longest stage of `plan`; all layers without a pipeline."""
    return max(end - begin for begin, end in plan.stages) if pipelined(plan) else plan.model.layers


def uneven(plan: Plan) -> bool:
    """True if the stages of `plan` have unequal numbers of layers."""
    return pipelined(plan) and len({end - begin for begin, end in plan.stages}) > 1


def stage_layers(plan: Plan) -> tuple[int, ...] | tuple[tuple[int, ...], ...]:
    """Return the number of layers of each rank's stage in `plan`. With several stages per rank, return a tuple of these
    numbers for each chunk (the first stages of all ranks, the second stages, ...)."""
    lengths = tuple(end - begin for begin, end in plan.stages)
    ranks, parts = plan.pipeline, chunks(plan)
    return lengths if parts == 1 else tuple(lengths[c * ranks : (c + 1) * ranks] for c in range(parts))


def shards_of_rows(sharded: Sharded) -> int:
    """Return the number of shards of the sequence dim between the blocks of `sharded`."""
    layout = sharded.declared(sharded.model.block_output)
    return sharded.plan.mesh.size(*sharded.plan.mesh.in_order(layout.get("sequence", ())))
