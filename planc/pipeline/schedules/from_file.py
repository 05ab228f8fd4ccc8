"""`csv("FILE")`: a schedule that the user wrote. The plan holds its action lists (`planc.pipeline.csv_schedule`)."""

from planc.pipeline.actions import Repeat
from planc.pipeline.schedule import Schedule, ScheduleShape


def rank_actions(shape: ScheduleShape, rank: int) -> list[Repeat]:
    """Raise AssertionError for any `shape` and `rank`: the plan, and not this module, holds the action lists of the
    file."""
    raise AssertionError("the action lists of a csv schedule are in its plan")


SCHEDULE = Schedule(name="csv", position=10, rank_actions=rank_actions)
