"""GPipe: every microbatch forward, then every one backward (Huang et al. 2018), in torch's order."""

from planc.schedules.actions import Action
from planc.schedules.schedule import Schedule, Shape


def order(shape: Shape, rank: int) -> list[Action]:
    """Backwards in the order of the forwards."""
    microbatches = range(shape.microbatches)
    forward = [Action("forward", rank, m) for m in microbatches]
    return forward + [Action("backward", rank, m) for m in microbatches]


SCHEDULE = Schedule(name="gpipe", place=1, order=order, steady=False)
