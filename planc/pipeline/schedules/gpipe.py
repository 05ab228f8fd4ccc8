"""GPipe: every microbatch forward, then every microbatch backward (Huang et al. 2018), in torch's order.

Rank 0 of 2, 3 microbatches: F0 F1 F2 B0 B1 B2.
"""

from planc.pipeline.actions import Action, Repeat
from planc.pipeline.schedule import Schedule, ScheduleShape


def rank_actions(shape: ScheduleShape, rank: int) -> list[Repeat]:
    """Return all forwards of rank `rank`, then all backwards in the same order."""
    forwards = Repeat(shape.microbatches, (Action("forward", rank, 0),))
    backwards = Repeat(shape.microbatches, (Action("backward", rank, 0),))
    return [forwards, backwards]


SCHEDULE = Schedule(name="gpipe", position=1, rank_actions=rank_actions, forwards_first=True)
