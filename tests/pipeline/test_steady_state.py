"""The middle of a long step is made from one turn of all ranks, where that is seen to repeat the one before it."""

import random
from dataclasses import replace

import pytest

from planc.pipeline.schedule import Shape
from planc.pipeline.simulate import simulate
from planc.pipeline.steady_state import core_of, steps_of
from planc.schedules import schedules
from tests.pipeline.test_dag import some_times

STEADY = ["1f1b", "interleaved_1f1b", "interleaved_zero_bubble", "zbv", "dualpipev"]


@pytest.mark.parametrize("name", STEADY)
@pytest.mark.parametrize(("ranks", "microbatches"), [(1, 40), (2, 30), (4, 64), (7, 70), (8, 200)])
def test_a_longer_step_is_made_of_a_shorter_one(name: str, ranks: int, microbatches: int) -> None:
    """Both of one core, whose kinds they keep; every end is the one of the lists."""
    schedule, chance = schedules()[name], random.Random(f"steady {name} {ranks} {microbatches}")
    found = []
    for more in (0, 3 * ranks):
        size = Shape(ranks, schedule.chunks, microbatches + more)
        steps, times = steps_of(schedule, size), some_times(chance, size.stages)
        lists = simulate([schedule.actions(size, rank) for rank in range(ranks)], times)
        found.append(steps)
        ends, end_s = steps.run(times)
        assert end_s == pytest.approx(max(lists.clock), rel=1e-12)
        for entries, wanted in zip(steps.end, [*lists.forward, *lists.backward], strict=True):
            assert [ends[entry] for entry in entries] == pytest.approx(wanted, rel=1e-12)
    assert found[0].kinds is found[1].kinds


def test_what_does_not_repeat_itself_is_told() -> None:
    """A turn that needs what came before the turn before it, or in which the ranks take turns in another order."""
    core = core_of(schedules()["zbv"], Shape(4, 2, 9), (2, 3, 3, 3))
    assert core is not None and core.repeats
    waits = next(i for i in range(core.begin, core.end) if core.steps.need[i])
    need, what = [*core.steps.need], [*core.steps.what]
    need[waits] = 1
    what[core.begin : core.end] = reversed(what[core.begin : core.end])
    assert not replace(core, steps=replace(core.steps, need=need)).repeats
    assert not replace(core, steps=replace(core.steps, what=what)).repeats
