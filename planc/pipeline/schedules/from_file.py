"""`csv("FILE")`: a schedule that the user wrote. The plan stores its action lists (`planc.pipeline.csv_schedule`)."""

from planc.pipeline.actions import Repeat
from planc.pipeline.schedule import Schedule, ScheduleShape


def rank_actions(shape: ScheduleShape, rank: int) -> list[Repeat]:
    """Raise AssertionError for any `shape` and `rank`, because the action lists are stored in the plan."""
    raise AssertionError("the action lists of a csv schedule are in its plan")


SCHEDULE = Schedule(name="csv", position=10, rank_actions=rank_actions)
