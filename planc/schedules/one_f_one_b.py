"""1F1B: warm up, then one forward and one backward in turn (Narayanan et al. 2019)."""

from planc.schedules.actions import Action, Row, Turns, abreast
from planc.schedules.schedule import Need, Schedule, Shape, at_least


def turns(shape: Shape, rank: int) -> list[Turns]:
    """Warm up with as many forwards as stages follow, then alternate, then drain."""
    ranks, microbatches = shape.ranks, shape.microbatches
    warm = min(ranks - rank - 1, microbatches)
    forward, backward = ([Turns(microbatches, (Action(kind, rank, 0),))] for kind in ("forward", "backward"))
    return abreast(Row(0, forward), Row(warm, backward))


def need(shape: Shape) -> Need | None:
    """torch refuses fewer microbatches than stages."""
    return at_least(shape.ranks, shape)


SCHEDULE = Schedule(name="1f1b", place=2, turns=turns, need=need)
