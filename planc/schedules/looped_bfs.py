"""Looped breadth first: all microbatches through a chunk before the next one (Lamy-Poirier 2022)."""

from planc.schedules.actions import Action
from planc.schedules.schedule import Schedule, Shape


def order(shape: Shape, rank: int) -> list[Action]:
    """All microbatches forward chunk by chunk, then all backward the other way."""
    stages = range(rank, shape.stages, shape.ranks)
    microbatches = range(shape.microbatches)
    forward = [Action("forward", s, m) for s in stages for m in microbatches]
    return forward + [Action("backward", s, m) for s in reversed(stages) for m in reversed(microbatches)]


SCHEDULE = Schedule(name="looped_bfs", place=4, order=order, chunks=2, free_chunks=True, steady=False)
