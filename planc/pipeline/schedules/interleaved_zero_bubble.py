"""Interleaved zero bubble: weight gradients are postponed to fill the bubble (ZB-H1 of Qi et al. 2023)."""

from planc.pipeline.actions import Repeat, interleave
from planc.pipeline.schedule import Schedule, ScheduleShape, whole_rounds
from planc.pipeline.schedules.interleaved_1f1b import stream


def rank_actions(shape: ScheduleShape, rank: int) -> list[Repeat]:
    """Return the actions of rank `rank`, with half the warm-up forwards of interleaved 1F1B.

    Each weight gradient runs after `rank` further input gradients. The last ones run in the cool-down, in which 1F1B
    would be idle.
    """
    every = shape.chunks * shape.microbatches
    warm_up = min((shape.chunks - 1) * shape.round + shape.ranks - rank - 1, every)
    return interleave(
        stream(shape, rank, "forward"),
        stream(shape, rank, "backward_input", warm_up),
        stream(shape, rank, "backward_weight", warm_up + min(rank, every)),
    )


SCHEDULE = Schedule(
    name="interleaved_zero_bubble",
    position=5,
    rank_actions=rank_actions,
    chunks=2,
    free_chunks=True,
    need=whole_rounds,
    in_rounds=True,
)
