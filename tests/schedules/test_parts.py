"""Schedules whose backward is in two parts: the plan's answer is that of their action lists."""

import pytest

from planc.diag.span import Span
from planc.ir.base import Cause
from planc.ir.plan import Split
from planc.pipeline.actions import Action
from planc.pipeline.lockstep import in_lockstep
from planc.pipeline.schedule import Schedule
from planc.pipeline.schedules import schedules
from planc.pipeline.split import action_lists

BUNDLED = [s for s in schedules().values() if s.name != "csv"]
RANKS, MICROBATCHES = 4, 16


def split_as(schedule: str, chunks: int, order: tuple[str, ...] = ()) -> Split:
    stages = tuple((i, i + 1) for i in range(RANKS * chunks))
    cause = Cause(span=Span("", 1, 1, 1, 1), sentence="")
    return Split(axis="pp", schedule=schedule, chunks=chunks, stages=stages, order=order, cause=cause)


def in_two(actions: list[list[Action]]) -> bool:
    return any(a.kind == "backward_weight" for row in actions for a in row)


@pytest.mark.parametrize("schedule", BUNDLED, ids=lambda s: s.name)
def test_the_answer_by_name_is_the_answer_by_actions(schedule: Schedule) -> None:
    """Each bundled schedule, in lockstep too, and of the same actions in a file of one's own."""
    split = split_as(schedule.name, schedule.chunks)
    actions = action_lists(split, RANKS, MICROBATCHES)
    rows = tuple(",".join(a.text for a in row) for row in actions)
    own = split_as("csv", schedule.chunks, rows)
    assert [[a.text for a in row] for row in action_lists(own, 0, 0)] == [[a.text for a in row] for row in actions]
    moved = in_lockstep(split)
    assert moved is not None
    for one in (split, own, moved):
        assert one.splits_backward == in_two(action_lists(one, RANKS, MICROBATCHES)), one.schedule


def test_both_kinds_are_bundled() -> None:
    assert {split_as(s.name, s.chunks).splits_backward for s in BUNDLED} == {True, False}
