"""Interleaved zero bubble: gradients of weights wait and fill the idle time (ZB-H1 of Qi et al. 2023)."""

from itertools import chain, zip_longest

from planc.schedules.actions import Action
from planc.schedules.interleaved_1f1b import passes
from planc.schedules.schedule import Schedule, Shape, whole_rounds


def order(shape: Shape, rank: int) -> list[Action]:
    """Half the warm-up of interleaved 1F1B; rank r lets its weights' gradients lag r microbatches behind."""
    forward = passes(shape, rank, "forward")
    inputs = passes(shape, rank, "backward_input")
    weights = passes(shape, rank, "backward_weight")
    warm = min((shape.chunks - 1) * shape.round + shape.ranks - rank - 1, len(forward))
    lagging = [None] * min(rank, len(weights)) + weights
    steady = chain.from_iterable(zip_longest(forward[warm:], inputs, lagging))
    return forward[:warm] + [action for action in steady if action is not None]


SCHEDULE = Schedule(
    name="interleaved_zero_bubble", place=5, order=order, chunks=2, free_chunks=True, need=whole_rounds, in_rounds=True
)
