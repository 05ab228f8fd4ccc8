"""A step that is run in one pass ends when the lists do that are run rank by rank."""

import random

import pytest

from planc.pipeline.schedule import Shape
from planc.pipeline.simulate import simulate
from planc.pipeline.stage_times import StageTimes, stage_times
from planc.pipeline.steady_state import steps_of
from planc.schedules import schedules
from tests.schedules.splits import NAMES

SHAPES = [(1, 4), (2, 8), (3, 12), (4, 8), (4, 34), (6, 24), (8, 40)]


def some_times(chance: random.Random, stages: int) -> StageTimes:
    """Uneven stages and a link that is quick or slow."""
    forward = [chance.uniform(0.5, 1.5) for _ in range(stages)]
    backward = [chance.uniform(1.5, 3.0) for _ in range(stages)]
    weight = [chance.uniform(0.2, 0.6) * s for s in backward]
    return stage_times(forward, backward, chance.choice([0.0, 0.05, 0.7]), weight)


def some_shape(name: str, ranks: int, microbatches: int) -> Shape | None:
    """With the schedule's own number of chunks; None where it does not take these numbers."""
    schedule = schedules()[name]
    size = Shape(ranks, schedule.chunks, microbatches)
    return None if schedule.need(size) or (schedule.even_ranks and ranks % 2) else size


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("ranks", "microbatches"), SHAPES)
def test_every_microbatch_leaves_every_stage_when_the_lists_say(name: str, ranks: int, microbatches: int) -> None:
    size = some_shape(name, ranks, microbatches)
    if size is None:
        return
    schedule, chance = schedules()[name], random.Random(f"{name} {ranks} {microbatches}")
    steps = steps_of(schedule, size)
    for _ in range(3):
        times = some_times(chance, size.stages)
        lists = simulate([schedule.actions(size, rank) for rank in range(ranks)], times)
        ends, end_s = steps.run(times)
        assert end_s == pytest.approx(max(lists.clock), rel=1e-12)
        for entries, wanted in zip(steps.end, [*lists.forward, *lists.backward], strict=True):
            assert [ends[entry] for entry in entries] == pytest.approx(wanted, rel=1e-12)
