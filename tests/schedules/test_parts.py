"""Schedules whose backward is in two parts, by their own action lists."""

from planc.ir.plan import BACKWARD_IN_TWO_PARTS
from planc.pipeline.schedule import Shape
from planc.schedules import schedules


def test_the_schedules_in_two_parts_are_those_that_run_weights_later() -> None:
    bundled = [s for s in schedules().values() if s.name != "csv"]
    found = set()
    for schedule in bundled:
        shape = Shape(4, schedule.chunks, 8)
        actions = [a for rank in range(4) for repeat in schedule.rank_actions(shape, rank) for a in repeat.actions]
        if any(action.kind == "backward_weight" for action in actions):
            found.add(schedule.name)
    assert found == set(BACKWARD_IN_TWO_PARTS) and len(bundled) > len(found)
