"""Pipelines in lockstep: dependencies tick by tick, places of saved tensors, and the order that is costed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from planc.pipeline.actions import Action, unrolled
from planc.pipeline.lockstep import Lockstep, in_lockstep, lockstep_schedule
from planc.pipeline.schedule import ScheduleShape
from planc.pipeline.split import action_lists
from planc.pipeline.stage_times import stage_times
from planc.pipeline.timeline import timeline
from tests.schedules.splits import split_of

SHAPES = [
    Lockstep(ranks, chunks, microbatches, round, first)
    for ranks in (2, 3, 4)
    for chunks, round in ((1, 1), (2, ranks), (3, ranks + 1))
    for microbatches in (1, ranks, 3 * ranks + 1)
    for first in (False, True)
]


def done(of: Lockstep, rank: int) -> Iterator[tuple[int, Action]]:
    """The actions of a rank by tick: forwards before backwards; those of microbatches that are not there left out."""
    numbers = [
        (chunk, round * of.round + m)
        for round in range(of.numbers // (of.chunks * of.round))
        for chunk in range(of.chunks)
        for m in range(of.round)
    ]
    for i, (chunk, microbatch) in enumerate(numbers):
        if microbatch < of.microbatches:
            yield i + rank, Action("forward", chunk * of.ranks + rank, microbatch)
            last = of.chunks - 1 - chunk
            tick = of.first_backward + of.ranks - 1 - rank + i
            yield tick, Action("backward", last * of.ranks + rank, microbatch)


@pytest.mark.parametrize("of", SHAPES, ids=str)
def test_every_action_comes_after_those_that_it_needs(of: Lockstep) -> None:
    ticks = {(a.kind, a.stage, a.microbatch): t for rank in range(of.ranks) for t, a in done(of, rank)}
    assert len(ticks) == 2 * of.ranks * of.chunks * of.microbatches
    assert max(ticks.values()) <= of.ticks - 1
    turn = of.ranks * of.chunks - 1
    for (kind, stage, m), t in ticks.items():
        if kind == "forward" and stage:
            assert ticks["forward", stage - 1, m] < t
        if kind == "backward":
            assert ticks["forward", stage, m] <= t
        if kind == "backward" and stage < turn:
            assert ticks["backward", stage + 1, m] < t
    assert ticks["forward", turn, 0] == of.first_loss


@pytest.mark.parametrize("of", SHAPES, ids=str)
def test_a_place_is_free_when_it_is_needed(of: Lockstep) -> None:
    """The first rank's backwards come last: its forwards and backwards by number, whether their microbatch is there."""
    held = most = 0
    for t in range(of.ticks):
        held += t < of.numbers
        most = max(most, held)
        held -= 0 <= t - of.first_backward - (of.ranks - 1) < of.numbers
    assert (held, most) == (0, of.places)


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "circular", "looped_bfs", "interleaved_1f1b"])
def test_a_step_takes_as_many_ticks_as_it_has(name: str) -> None:
    """Equal stages: as long as each tick's forwards and backwards, those of ranks that wait too."""
    ranks, microbatches = 4, 8
    split = split_of(name, ranks)
    found = in_lockstep(split)
    assert found is not None
    stages = len(found.stages)
    run = timeline(action_lists(found, ranks, microbatches), stage_times([1.0] * stages, [2.0] * stages, 0.0))
    assert run.makespan_s == pytest.approx(3.0 * (split.chunks * microbatches + ranks - 1))


def test_1f1b_in_lockstep_keeps_more_microbatches() -> None:
    schedule = lockstep_schedule("1f1b_in_lockstep")
    for rank in range(4):
        actions = list(unrolled(schedule.rank_actions(ScheduleShape(4, 1, 16), rank)))
        first = next(i for i, a in enumerate(actions) if a.kind == "backward")
        assert first == 2 * (3 - rank) + 1
        assert [a.microbatch for a in actions if a.kind == "backward"] == list(range(16))


def test_an_order_of_the_user_stays_as_it_is() -> None:
    own = split_of("1f1b", 2, order=("0F0,0B0", "1F0,1B0"))
    assert in_lockstep(own) is own and in_lockstep(None) is None
