"""Looped breadth first: all microbatches through a chunk before the next one (Lamy-Poirier 2022)."""

from planc.schedules.actions import Action, Turns
from planc.schedules.schedule import Schedule, Shape


def turns(shape: Shape, rank: int) -> list[Turns]:
    """All microbatches forward chunk by chunk, then all backward the other way."""
    stages, microbatches = range(rank, shape.stages, shape.ranks), shape.microbatches
    forward = [Turns(microbatches, (Action("forward", s, 0),)) for s in stages]
    return forward + [Turns(microbatches, (Action("backward", s, microbatches - 1),), -1) for s in reversed(stages)]


SCHEDULE = Schedule(name="looped_bfs", place=4, turns=turns, chunks=2, free_chunks=True, steady=False)
