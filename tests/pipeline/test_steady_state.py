"""The steady state of a long step is a period that is repeated, and extrapolated once it repeats itself in time."""

import random
from dataclasses import replace

import pytest

from planc.pipeline import steady_state
from planc.pipeline.dag import execution_order, rank_lists
from planc.pipeline.schedule import ScheduleShape
from planc.pipeline.schedules import schedules
from planc.pipeline.stage_times import stage_times
from planc.pipeline.steady_state import StepOrder, periodic_order, repeats_itself, step_order
from tests.pipeline.test_dag import some_times

STEADY = ["1f1b", "interleaved_1f1b", "interleaved_zero_bubble", "zbv", "dualpipe", "dualpipev"]


@pytest.mark.parametrize("name", STEADY)
@pytest.mark.parametrize(("ranks", "microbatches"), [(1, 40), (2, 30), (4, 64), (7, 70), (8, 200)])
def test_a_long_step_repeats_a_period(name: str, ranks: int, microbatches: int) -> None:
    """Steps that differ in length share one order; each takes as long as with every action listed."""
    schedule, chance = schedules()[name], random.Random(f"steady {name} {ranks} {microbatches}")
    if schedule.even_ranks and ranks % 2:
        ranks += 1
    found = []
    for more in (0, 4 * ranks):
        shape = ScheduleShape(ranks, schedule.chunks, microbatches + more)
        found.append(step_order(schedule, shape))
        for _ in range(5):
            times = some_times(chance, shape.stages)
            listed = StepOrder(execution_order(rank_lists(schedule, shape)))
            assert found[-1].makespan_s(times) == pytest.approx(listed.makespan_s(times), rel=1e-12)
    assert found[0].order is found[1].order
    assert 0 < found[0].repeats < found[1].repeats


@pytest.mark.parametrize("name", STEADY)
@pytest.mark.parametrize("ranks", [2, 4, 8, 10, 24])
def test_no_step_is_too_long_to_list(name: str, ranks: int) -> None:
    """Every long step has a period, whatever the remainder of its microbatches."""
    schedule = schedules()[name]
    for chunks in (1, 2, 5) if schedule.free_chunks else (schedule.chunks,):
        for rest in (0, 2, ranks // 2):
            shape = ScheduleShape(ranks, chunks, 10**5 * ranks + rest)
            if schedule.need(shape) is None:
                assert step_order(schedule, shape).repeats > 10**4


def test_what_does_not_repeat_itself_is_found() -> None:
    """A period that waits for what came before the period before it, or runs its actions in another order."""
    step = periodic_order(schedules()["zbv"], ScheduleShape(4, 2, 9), (2, 3, 3, 3))
    assert step is not None and repeats_itself(step)
    waits, kinds = [*step.order.waits], [*step.order.kinds]
    waiting = next(i for i in range(step.begin, step.end) if waits[i])
    waits[waiting] = -waiting
    kinds[step.begin : step.end] = reversed(kinds[step.begin : step.end])
    assert not repeats_itself(replace(step, order=replace(step.order, waits=waits)))
    assert not repeats_itself(replace(step, order=replace(step.order, kinds=kinds)))


def test_a_step_that_stays_unsteady_is_extrapolated_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks are almost equally slow: it takes thousands of microbatches until the slower one sets the pace."""
    monkeypatch.setattr(steady_state, "MAX_SIMULATED_ENTRIES", 1_000)
    times = stage_times([1.0, 0.0, 1.0001], [1.0, 0.0, 1.0001])
    step = step_order(schedules()["1f1b"], ScheduleShape(3, 1, 4_000))
    listed = StepOrder(execution_order(rank_lists(schedules()["1f1b"], ScheduleShape(3, 1, 4_000))))
    assert step.makespan_s(times) == pytest.approx(listed.makespan_s(times), rel=1e-3)
