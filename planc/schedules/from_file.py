"""`csv("FILE")`: a schedule of one's own. The plan holds its lists (`planc.schedules.own` reads them)."""

from planc.schedules.actions import Action
from planc.schedules.schedule import Schedule, Shape


def order(shape: Shape, rank: int) -> list[Action]:
    raise AssertionError("a schedule of one's own is in its plan")


SCHEDULE = Schedule(name="csv", place=10, order=order, steady=False)
