"""Interleaved zero bubble: gradients of weights wait and fill the idle time (ZB-H1 of Qi et al. 2023)."""

from planc.schedules.actions import Action
from planc.schedules.interleaved_1f1b import passes
from planc.schedules.schedule import Schedule, Shape, whole_rounds


def order(shape: Shape, rank: int) -> list[Action]:
    """Half the warm-up of interleaved 1F1B; rank r lets its weights' gradients lag r microbatches behind."""
    forward = passes(shape, rank, "forward")
    inputs = passes(shape, rank, "backward_input")
    weights = passes(shape, rank, "backward_weight")
    warm = min((shape.chunks - 1) * shape.round + shape.ranks - rank - 1, len(forward))
    actions = forward[:warm]
    for i, backward in enumerate(inputs):
        actions += forward[warm + i : warm + i + 1]
        actions.append(backward)
        if i >= rank:
            actions.append(weights[i - rank])
    return actions + weights[max(0, len(inputs) - rank) :]


SCHEDULE = Schedule(
    name="interleaved_zero_bubble", place=5, order=order, chunks=2, free_chunks=True, need=whole_rounds, in_rounds=True
)
