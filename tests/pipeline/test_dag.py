"""A step that is run in one pass over its topological order ends when its lists do that are run rank by rank."""

import random

import pytest

from planc.pipeline.actions import unrolled
from planc.pipeline.dag import execution_order, rank_lists
from planc.pipeline.schedule import ScheduleShape
from planc.pipeline.schedules import schedules
from planc.pipeline.simulate import Simulation, action_spans
from planc.pipeline.stage_times import StageTimes, stage_times
from planc.pipeline.timeline import makespan_s
from tests.pipeline.plain import plain_ends_s
from tests.schedules.splits import NAMES

SHAPES = [(1, 4), (2, 8), (3, 12), (4, 8), (4, 34), (6, 24), (8, 40)]


def some_times(chance: random.Random, stages: int) -> StageTimes:
    """Uneven stages and a link that is quick or slow."""
    forward = [chance.uniform(0.5, 1.5) for _ in range(stages)]
    backward = [chance.uniform(1.5, 3.0) for _ in range(stages)]
    weight = [chance.uniform(0.2, 0.6) * s for s in backward]
    return stage_times(forward, backward, chance.choice([0.0, 0.05, 0.7]), weight)


def some_shape(name: str, ranks: int, microbatches: int) -> ScheduleShape | None:
    """With the schedule's own number of chunks; None where it does not take these numbers."""
    schedule = schedules()[name]
    shape = ScheduleShape(ranks, schedule.chunks, microbatches)
    return None if schedule.need(shape) or (schedule.even_ranks and ranks % 2) else shape


CASES = [(name, shape) for name in NAMES for sizes in SHAPES if (shape := some_shape(name, *sizes)) is not None]


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_every_action_ends_when_the_lists_say(name: str, shape: ScheduleShape) -> None:
    lists, chance = rank_lists(schedules()[name], shape), random.Random(f"{name} {shape}")
    actions = [unrolled(mine) for mine in lists]
    order = execution_order(lists)
    for _ in range(3):
        times = some_times(chance, shape.stages)
        wanted = plain_ends_s(actions, times)
        simulation = Simulation(order.entry_kinds_s(times), times.send_s, [0.0] * shape.ranks)
        simulation.run(order.waits, order.kinds)
        assert simulation.clock_s == pytest.approx([ends[-1] for ends in wanted], rel=1e-12)
        assert makespan_s(schedules()[name], shape, times) == pytest.approx(max(map(max, wanted)), rel=1e-12)
        spans = action_spans(actions, times)
        for rank, ends in enumerate(wanted):
            mine = [span for span in spans if span.rank == rank]
            assert [span.action for span in mine] == actions[rank]
            for span, end in zip(mine, ends, strict=True):
                assert span.action.overlaps_next or span.end_s == pytest.approx(end, rel=1e-12)
