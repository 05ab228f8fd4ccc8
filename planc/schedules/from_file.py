"""`csv("FILE")`: a schedule of one's own. The plan holds its lists (`planc.schedules.csv` reads them)."""

from planc.schedules.actions import Turns
from planc.schedules.schedule import Schedule, Shape


def turns(shape: Shape, rank: int) -> list[Turns]:
    raise AssertionError("a schedule of one's own is in its plan")


SCHEDULE = Schedule(name="csv", place=10, turns=turns, steady=False)
