"""Action lists are made of repeats: results for the repeats hold for the list action by action."""

import pytest

from planc.pipeline.actions import Action, InstructionStream, Repeat, interleave, unrolled
from planc.pipeline.in_flight import before_backwards, most_in_flight
from planc.pipeline.schedule import ScheduleShape
from planc.pipeline.schedules import schedules
from planc.pipeline.stage_times import stage_times
from planc.pipeline.timeline import timeline
from tests.schedules.splits import NAMES


def test_streams_are_interleaved() -> None:
    """The second stream begins one slot later and goes on alone."""
    forward = [Repeat(2, (Action("forward", 0, 0),)), Repeat(1, (Action("forward", 1, 0),))]
    repeats = interleave(InstructionStream(0, forward), InstructionStream(1, [Repeat(3, (Action("backward", 1, 0),))]))
    assert [a.text for a in unrolled(repeats)] == ["0F0", "0F1", "1B0", "1F0", "1B1", "1B2"]


def test_repeats_go_by_their_step() -> None:
    repeats = Repeat(3, (Action("backward", 0, 4, overlaps_next=True), Action("forward", 1, 9)), -2)
    assert [a.text for a in unrolled([repeats])] == ["0B4", "1F9", "0B2", "1F7", "0B0", "1F5"]
    assert unrolled([repeats.without_first(1)]) == unrolled([repeats])[2:]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 8), (4, 16), (6, 24), (6, 36), (8, 64)])
def test_the_fullest_moment_is_that_of_the_actions(name: str, ranks: int, microbatches: int) -> None:
    size = ScheduleShape(ranks, schedules()[name].chunks, microbatches)
    for rank in range(ranks):
        repeats = schedules()[name].rank_actions(size, rank)
        every = [Repeat(1, (action,)) for action in unrolled(repeats)]
        assert most_in_flight(repeats) == most_in_flight(every) == most_in_flight([Repeat(1, tuple(unrolled(repeats)))])


def test_gradients_of_weights_that_came_apart_wait_for_the_next_backward() -> None:
    inputs, weights = Action("backward_input", 1, 0), Action("backward_weight", 1, 0)
    moments = before_backwards([Repeat(1, (Action("forward", 1, 0),) * 3 + (inputs, weights) * 3)])
    assert [b.forward for b in moments] == [1, *[None] * 5]
    assert [(b.kind, {*b.apart}, {*b.only_apart}, b.inputs_alone.get(1, 0)) for b in moments] == [
        ("backward_input", set(), set(), 0),
        ("backward_weight", set(), set(), 1),
        ("backward_input", {1}, {1}, 1),
        ("backward_weight", set(), set(), 2),
        ("backward_input", {1}, set(), 2),
        ("backward_weight", set(), set(), 3),
    ]


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved_1f1b", "looped_bfs"])
@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 2), (2, 8), (4, 4), (4, 16), (6, 36), (8, 64)])
def test_moments_before_backwards_are_those_of_the_actions(name: str, ranks: int, microbatches: int) -> None:
    size = ScheduleShape(ranks, schedules()[name].chunks, microbatches)
    for rank in range(ranks):
        repeats = schedules()[name].rank_actions(size, rank)
        every = before_backwards([Repeat(1, (action,)) for action in unrolled(repeats)])
        some = before_backwards(repeats)
        assert some[:2] == every[:2] and all(b in every for b in some)
        assert max(sum(b.held.values()) for b in some) == sum(most_in_flight(repeats).held.values())
        assert {b.ended for b in some} == {b.ended for b in every}


def test_a_rank_that_does_nothing_holds_nothing() -> None:
    assert most_in_flight([]) == ({}, {})
    assert timeline([[], [Action("forward", 0, 0)]], stage_times([1.0], [2.0])).in_flight == ({}, {0: 1})


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zbv", "dualpipev", "dualpipe"])
def test_a_longer_step_has_no_more_turns(name: str) -> None:
    schedule = schedules()[name]
    few, many = (
        [len(schedule.rank_actions(ScheduleShape(4, schedule.chunks, m), r)) for r in range(4)] for m in (32, 3200)
    )
    assert many == few
