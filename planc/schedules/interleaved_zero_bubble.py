"""Interleaved zero bubble: gradients of weights wait and fill the idle time (ZB-H1 of Qi et al. 2023)."""

from planc.schedules.actions import Turns, abreast
from planc.schedules.interleaved_1f1b import passes
from planc.schedules.schedule import Schedule, Shape, whole_rounds


def turns(shape: Shape, rank: int) -> list[Turns]:
    """Half the warm-up of interleaved 1F1B; rank r lets its weights' gradients lag r microbatches behind."""
    every = shape.chunks * shape.microbatches
    warm = min((shape.chunks - 1) * shape.round + shape.ranks - rank - 1, every)
    return abreast(
        passes(shape, rank, "forward"),
        passes(shape, rank, "backward_input", warm),
        passes(shape, rank, "backward_weight", warm + min(rank, every)),
    )


SCHEDULE = Schedule(
    name="interleaved_zero_bubble", place=5, turns=turns, chunks=2, free_chunks=True, need=whole_rounds, in_rounds=True
)
