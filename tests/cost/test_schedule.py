"""Simulated schedules against their closed forms."""

import pytest

from planc.cost.schedule import Action, DeadlockError, orders, run_schedule, simulate
from planc.diag.span import Span
from planc.ir.base import Cause
from planc.ir.plan import Split

CAUSE = Cause(span=Span("x", 1, 1, 1, 2), sentence="split")


def run(schedule: str, ranks: int, microbatches: int, chunks: int = 1, send_s: float = 0.0):
    stages = ranks * chunks
    split = Split(axis="pp", schedule=schedule, chunks=chunks, stages=((0, 1),) * stages, cause=CAUSE)
    return simulate(orders(split, ranks, microbatches), [1.0 / chunks] * stages, [2.0 / chunks] * stages, send_s)


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("microbatches", [8, 32])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_bubble_of_gpipe_and_1f1b(schedule: str, ranks: int, microbatches: int) -> None:
    """(p - 1) of forward and backward: the published bubble (p - 1) / m of the ideal time."""
    timeline = run(schedule, ranks, microbatches)
    assert timeline.makespan_s == pytest.approx(3.0 * (microbatches + ranks - 1))
    assert timeline.busy_s == pytest.approx([3.0 * microbatches] * ranks)


@pytest.mark.parametrize("chunks", [2, 4])
def test_interleaving_divides_the_bubble_by_the_chunks(chunks: int) -> None:
    """Narayanan et al. 2021: (p - 1) / (m v)."""
    timeline = run("interleaved_1f1b", 4, 16, chunks)
    assert timeline.makespan_s - 48.0 == pytest.approx(3.0 * 3 / chunks)


def test_in_flight_microbatches() -> None:
    """1F1B holds p - rank microbatches, GPipe holds all."""
    assert [sum(h.values()) for h in run("1f1b", 4, 16).in_flight] == [4, 3, 2, 1]
    assert [sum(h.values()) for h in run("gpipe", 4, 16).in_flight] == [16] * 4


def test_sending_takes_its_time() -> None:
    assert run("1f1b", 4, 8, send_s=0.1).makespan_s > run("1f1b", 4, 8).makespan_s


def test_a_schedule_that_waits_for_itself_is_found() -> None:
    order = [[Action(True, 0, 0), Action(False, 0, 0)]]
    with pytest.raises(DeadlockError):
        simulate(order, [1.0], [1.0], 0.0)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved_1f1b", "looped_bfs"])
def test_a_long_step_is_extended_exactly(schedule: str) -> None:
    ranks, chunks = 4, 2 if schedule in ("interleaved_1f1b", "looped_bfs") else 1
    stages = ranks * chunks
    split = Split(axis="pp", schedule=schedule, chunks=chunks, stages=((0, 1),) * stages, cause=CAUSE)
    forward = [1.0 + 0.1 * (s % 3) for s in range(stages)]
    backward = [2.0 + 0.2 * (s % 2) for s in range(stages)]
    whole = simulate(orders(split, ranks, 128), forward, backward, 0.05)
    extended = run_schedule(split, ranks, 128, forward, backward, 0.05)
    assert extended.makespan_s == pytest.approx(whole.makespan_s)
    assert extended.busy_s == pytest.approx(whole.busy_s)
    assert extended.in_flight == whole.in_flight
