"""Lower bounds on the makespan hold for every schedule, and are near it."""

import random

import pytest

from planc.ir.plan import Split
from planc.pipeline.lower_bound import CriticalPaths, followed, makespan_lower_bound_s
from planc.pipeline.schedule import ScheduleShape
from planc.pipeline.schedules import schedules
from planc.pipeline.stage_times import StageTimes, stage_times
from planc.pipeline.timeline import run_schedule
from tests.pipeline.test_dag import CASES, some_shape, some_times
from tests.schedules.splits import NAMES, split_of, stages_by_rank


def near_bound_s(split: Split, ranks: int, microbatches: int, times: StageTimes) -> float:
    return makespan_lower_bound_s(split, stages_by_rank(split, ranks), microbatches, times)


def path_bound_s(split: Split, ranks: int, microbatches: int, times: StageTimes) -> float:
    paths = CriticalPaths(split, stages_by_rank(split, ranks), range(len(times.forward_s)))
    return paths.lower_bound_s(times, microbatches)


LONG = [(name, shape) for name in NAMES for sizes in ((4, 120), (8, 360)) if (shape := some_shape(name, *sizes))]


@pytest.mark.parametrize(("name", "shape"), [*CASES, *LONG])
def test_no_step_is_shorter(name: str, shape: ScheduleShape) -> None:
    split, chance = split_of(name, shape.ranks), random.Random(f"bound {name} {shape}")
    ranks, microbatches = shape.ranks, shape.microbatches
    for _ in range(10):
        times = some_times(chance, shape.stages)
        end_s = run_schedule(split, ranks, microbatches, times).makespan_s
        assert path_bound_s(split, ranks, microbatches, times) <= end_s * (1 + 1e-12)
        assert near_bound_s(split, ranks, microbatches, times) <= end_s


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("ranks", "chunks", "microbatches"), [(4, 0, 16), (8, 0, 24), (8, 3, 16), (8, 0, 128)])
def test_with_equal_stages_the_relaxation_is_near(name: str, ranks: int, chunks: int, microbatches: int) -> None:
    """Within 2 % of the makespan, which is up to 1.5 times the busiest rank's time. Within 5 % for 1F1B, where every
    microbatch waits for hand-overs and the relaxation follows only some of them."""
    split = split_of(name, ranks, chunks if schedules()[name].free_chunks else 0)
    times = stage_times([1.0] * len(split.stages), [2.0] * len(split.stages), 0.1)
    end_s = run_schedule(split, ranks, microbatches, times).makespan_s
    assert (0.95 if name == "1f1b" else 0.98) * end_s <= near_bound_s(split, ranks, microbatches, times) <= end_s


def test_a_step_of_very_many_microbatches_is_bounded() -> None:
    """By the busiest rank alone."""
    split, times = split_of("interleaved_1f1b", 4), stage_times([1.0] * 8, [2.0] * 8)
    assert near_bound_s(split, 4, 4 * 10**6, times) == pytest.approx(6.0 * 4 * 10**6)


def test_the_first_and_the_last_microbatch_of_each_direction_are_followed() -> None:
    assert followed(1, 1, 4) == [0]
    assert followed(5, 1, 4) == [0, 1, 2, 4]
    assert {0, 1, 30, 31} <= {*followed(32, 2, 4)}
