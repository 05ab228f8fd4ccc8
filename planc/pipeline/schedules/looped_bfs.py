"""Looped breadth-first: all microbatches through one chunk before the next one (Lamy-Poirier 2022).

Rank 0 of 2 with 2 chunks (stages 0 and 2), 2 microbatches: 0F0 0F1 2F0 2F1 2B1 2B0 0B1 0B0.
"""

from planc.pipeline.actions import Action, Repeat
from planc.pipeline.schedule import Schedule, ScheduleShape


def rank_actions(shape: ScheduleShape, rank: int) -> list[Repeat]:
    """Return all forwards of rank `rank`, chunk by chunk, then all backwards in the opposite order."""
    stages, microbatches = range(rank, shape.stages, shape.ranks), shape.microbatches
    forwards = [Repeat(microbatches, (Action("forward", s, 0),)) for s in stages]
    backwards = [Repeat(microbatches, (Action("backward", s, microbatches - 1),), step=-1) for s in reversed(stages)]
    return forwards + backwards


SCHEDULE = Schedule(
    name="looped_bfs", position=4, rank_actions=rank_actions, chunks=2, free_chunks=True, forwards_first=True
)
