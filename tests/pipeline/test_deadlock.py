"""Ranks that wait for each other are named."""

import pytest

from planc.pipeline.actions import Action, Repeat
from planc.pipeline.dag import rank_lists
from planc.pipeline.deadlock import find_deadlock
from planc.pipeline.stage_times import stage_times
from planc.pipeline.timeline import timeline
from planc.schedules import schedules
from tests.pipeline.test_dag import some_shape
from tests.schedules.splits import NAMES


def circle(*lists: list[Action]) -> list[str]:
    return [wait.text() for wait in find_deadlock([[Repeat(1, tuple(actions))] for actions in lists])]


def test_a_schedule_that_waits_for_itself_is_named() -> None:
    """Rank 0 wants the gradient before it sends what rank 1 needs for it."""
    first = [Action("forward", 0, 0), Action("backward", 0, 0), Action("forward", 0, 1), Action("backward", 0, 1)]
    second = [Action("forward", 1, 0), Action("forward", 1, 1), Action("backward", 1, 0), Action("backward", 1, 1)]
    assert circle(first, second) == ["rank 0 waits at 0B0 for 1B0 of rank 1", "rank 1 waits at 1F1 for 0F1 of rank 0"]
    with pytest.raises(AssertionError, match="needs=Action"):
        timeline([first, second], stage_times([1.0] * 2, [2.0] * 2))


def test_an_order_against_itself_is_named() -> None:
    assert circle([Action("backward", 0, 0), Action("forward", 0, 0)]) == ["rank 0 waits at 0B0 for 0F0 of itself"]
    early = [Action("forward", 0, 0), Action("backward_weight", 0, 0), Action("backward_input", 0, 0)]
    assert circle(early) == ["rank 0 waits at 0W0 for 0I0 of itself"]


def test_overlapped_actions_start_together_or_not_at_all() -> None:
    both = [Action("forward", 0, 0, overlaps_next=True), Action("backward", 0, 0)]
    assert circle(both) == ["rank 0 waits at 0B0 for 0F0 of itself"]


@pytest.mark.parametrize("name", NAMES)
def test_no_bundled_schedule_deadlocks(name: str) -> None:
    for ranks, microbatches in ((2, 8), (4, 16), (6, 24)):
        shape = some_shape(name, ranks, microbatches)
        assert shape is not None
        assert find_deadlock(rank_lists(schedules()[name], shape)) == ()
