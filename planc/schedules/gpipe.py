"""GPipe: every microbatch forward, then every one backward (Huang et al. 2018), in torch's order."""

from planc.schedules.actions import Action, Turns
from planc.schedules.schedule import Schedule, Shape


def turns(shape: Shape, rank: int) -> list[Turns]:
    """Backwards in the order of the forwards."""
    return [Turns(shape.microbatches, (Action(kind, rank, 0),)) for kind in ("forward", "backward")]


SCHEDULE = Schedule(name="gpipe", place=1, turns=turns, steady=False)
