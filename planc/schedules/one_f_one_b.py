"""1F1B: warm up, then one forward and one backward in turn (Narayanan et al. 2019)."""

from planc.schedules.actions import Action, in_turn
from planc.schedules.schedule import Need, Schedule, Shape, at_least


def order(shape: Shape, rank: int) -> list[Action]:
    """Warm up with as many forwards as stages follow, then alternate, then drain."""
    ranks, microbatches = shape.ranks, shape.microbatches
    warm = min(ranks - rank - 1, microbatches)
    forward, backward = Action("forward", rank, 0), Action("backward", rank, 0)
    steady = in_turn(microbatches - warm, forward._replace(microbatch=warm), backward)
    drain = in_turn(warm, backward._replace(microbatch=microbatches - warm))
    return in_turn(warm, forward) + steady + drain


def need(shape: Shape) -> Need | None:
    """torch refuses fewer microbatches than stages."""
    return at_least(shape.ranks, shape)


SCHEDULE = Schedule(name="1f1b", place=2, order=order, need=need)
