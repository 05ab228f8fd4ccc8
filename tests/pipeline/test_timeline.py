"""Schedules in seconds against published formulas, and long steps against whole simulations."""

import random

import pytest

from planc.ir.plan import Split
from planc.pipeline.actions import Action, Repeat
from planc.pipeline.deadlock import find_deadlock
from planc.pipeline.schedule import ScheduleShape
from planc.pipeline.schedules import schedules
from planc.pipeline.simulate import action_spans
from planc.pipeline.split import action_lists, microbatch_copies, shape_of
from planc.pipeline.stage_times import StageTimes, busy_s, stage_times
from planc.pipeline.timeline import Timeline, run_schedule, timeline
from tests.pipeline.plain import plain_ends_s
from tests.pipeline.test_dag import some_shape
from tests.schedules.splits import NAMES, split_of, stages_by_rank

FORWARD, BACKWARD = 1.0, 2.0


def times_of(split: Split, send_s: float = 0.0) -> StageTimes:
    """A rank's share of the model takes 1 s forward and 2 s backward, half of it for the weights."""
    held, stages = split.chunks * microbatch_copies(split), len(split.stages)
    return stage_times([FORWARD / held] * stages, [BACKWARD / held] * stages, send_s)


def run(name: str, ranks: int, microbatches: int, chunks: int = 0, send_s: float = 0.0) -> Timeline:
    split = split_of(name, ranks, chunks)
    return timeline(action_lists(split, ranks, microbatches), times_of(split, send_s))


def busy(name: str, ranks: int, microbatches: int, chunks: int = 0) -> list[float]:
    """Seconds that each rank computes."""
    split = split_of(name, ranks, chunks)
    each = microbatches / microbatch_copies(split)
    return list(busy_s(stages_by_rank(split, ranks), each, times_of(split)))


def bubble(name: str, ranks: int, microbatches: int, chunks: int = 0) -> float:
    """Idle seconds of the ranks, which are the same on every one."""
    rank_s, *others = busy(name, ranks, microbatches, chunks)
    assert others == pytest.approx([rank_s] * (ranks - 1))
    return run(name, ranks, microbatches, chunks).makespan_s - rank_s


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("microbatches", [8, 32])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_bubble_of_gpipe_and_1f1b(schedule: str, ranks: int, microbatches: int) -> None:
    """(p - 1) / (m + p - 1) of the whole time (Huang et al. 2018; Narayanan et al. 2019)."""
    t = run(schedule, ranks, microbatches)
    assert busy(schedule, ranks, microbatches) == pytest.approx([3.0 * microbatches] * ranks)
    assert bubble(schedule, ranks, microbatches) / t.makespan_s == pytest.approx(
        (ranks - 1) / (microbatches + ranks - 1)
    )


@pytest.mark.parametrize("schedule", ["interleaved_1f1b", "looped_bfs", "circular"])
@pytest.mark.parametrize("chunks", [2, 4])
def test_chunks_divide_the_bubble(schedule: str, chunks: int) -> None:
    """(p - 1) / (v m) of the ideal time (Narayanan et al. 2021, section 2.2)."""
    assert bubble(schedule, 4, 16, chunks) / (16 * 3.0) == pytest.approx(3 / (chunks * 16))


@pytest.mark.parametrize("chunks", [1, 2, 3])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_bubble_of_zero_bubble(ranks: int, chunks: int) -> None:
    """ZB-H1: (p - 1)(F + B - W) with B the input's part (Qi et al. 2023, table 2); chunks divide it."""
    f, b, w = FORWARD, BACKWARD / 2, BACKWARD / 2
    assert bubble("interleaved_zero_bubble", ranks, 4 * ranks, chunks) == pytest.approx(
        (ranks - 1) * (f + b - w) / chunks
    )


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_zbv_idles_only_until_its_first_microbatch_and_after_its_last(ranks: int) -> None:
    """No rank waits between its first and last action where F = B = W (Qi et al. 2023, section 6)."""
    split = split_of("zbv", ranks)
    times = stage_times([1.0] * 2 * ranks, [2.0] * 2 * ranks)
    ran = action_spans(action_lists(split, ranks, 2 * ranks), times)
    for rank in range(ranks):
        mine = [r for r in ran if r.rank == rank]
        assert mine[-1].end_s - mine[0].start_s == pytest.approx(6.0 * 2 * ranks)
        assert mine[0].start_s == pytest.approx(rank)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_bubble_of_dualpipe(ranks: int) -> None:
    """(p / 2 - 1)(F&B + B - 3 W), F&B taken as F + B here (DeepSeek-AI 2024, table 2); half the work of a
    rank's microbatch is one stage's. DualPipeV has it with p instead of p / 2."""
    f, b, w = FORWARD / 2, BACKWARD / 2, BACKWARD / 4
    one = (f + b) + b - 3 * w
    assert bubble("dualpipe", ranks, 4 * ranks) == pytest.approx((ranks / 2 - 1) * one)
    assert bubble("dualpipev", ranks, 4 * ranks) == pytest.approx((ranks - 1) * one)


def test_in_flight_microbatches() -> None:
    """1F1B holds p - rank microbatches, GPipe all, DualPipe p + 1 of its stages (DeepSeek-AI 2024, table 2);
    zero bubble and ZB-V no more than 1F1B's p, here in halves."""
    held = {name: [sum(h.values()) for h in run(name, 4, 16).in_flight] for name in NAMES}
    assert held["1f1b"] == [4, 3, 2, 1]
    assert held["gpipe"] == [16] * 4
    assert held["looped_bfs"] == held["circular"] == [32] * 4
    assert held["interleaved_1f1b"] == [11, 9, 7, 5]
    assert held["interleaved_zero_bubble"] == held["zbv"] == [8] * 4
    assert held["dualpipe"] == [5] * 4
    assert held["dualpipev"] == [9] * 4


def test_microbatches_that_await_gradients_of_weights_are_counted() -> None:
    t = run("interleaved_zero_bubble", 4, 16)
    assert [sum(w.values()) for w in t.weight_waits] == [0, 1, 2, 3]
    assert all(w[s] <= t.in_flight[rank][s] for rank, w in enumerate(t.weight_waits) for s in w)
    assert all(w == {} for w in run("1f1b", 4, 16).weight_waits)


@pytest.mark.parametrize("schedule", ["gpipe", "looped_bfs"])
def test_the_first_and_the_last_microbatch_are_handed_over_once_a_stage(schedule: str) -> None:
    """Down the ranks and back up: all other hand-overs are hidden."""
    sent = run(schedule, 4, 16, send_s=0.1).makespan_s - run(schedule, 4, 16).makespan_s
    assert sent == pytest.approx(2 * 3 * 0.1)


@pytest.mark.parametrize("schedule", NAMES)
def test_hand_overs_make_a_step_longer(schedule: str) -> None:
    assert run(schedule, 4, 16, send_s=0.1).makespan_s > run(schedule, 4, 16).makespan_s


SIZES = [(ranks, microbatches) for ranks in (2, 4, 6) for microbatches in (8, 12, 24)]


@pytest.mark.parametrize(
    ("schedule", "shape"), [(n, s) for n in NAMES for size in SIZES if (s := some_shape(n, *size))]
)
def test_every_action_runs_once(schedule: str, shape: ScheduleShape) -> None:
    """On the rank that holds its stage; the backward whole or in its two parts; and no rank waits forever."""
    split, ranks, microbatches = split_of(schedule, shape.ranks), shape.ranks, shape.microbatches
    lists = action_lists(split, ranks, microbatches)
    stages = len(split.stages)
    wanted = {(s, m) for s in range(stages) for m in range(microbatches)}
    by_kind = {k: [(a.stage, a.microbatch) for actions in lists for a in actions if a.kind == k] for k in KINDS}
    assert sorted(by_kind["forward"]) == sorted(wanted)
    assert sorted(by_kind["backward"] + by_kind["backward_input"]) == sorted(wanted)
    assert sorted(by_kind["backward_weight"]) == sorted(by_kind["backward_input"])
    assert find_deadlock([[Repeat(1, tuple(actions))] for actions in lists]) == ()


KINDS = ("forward", "backward", "backward_input", "backward_weight")


@pytest.mark.parametrize("schedule", NAMES)
@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 64), (4, 128), (4, 130), (6, 96)])
def test_a_long_step_is_extrapolated_exactly(schedule: str, ranks: int, microbatches: int) -> None:
    """With uneven stages and slow links it takes as long as all of its actions simulated."""
    split = split_of(schedule, ranks)
    if schedules()[schedule].need(shape_of(split, ranks, microbatches)):
        microbatches -= microbatches % ranks
    chance = random.Random(f"{schedule} {ranks} {microbatches}")
    for _ in range(3):
        stages = len(split.stages)
        forward = [chance.uniform(1.0, 1.2) for _ in range(stages)]
        backward = [chance.uniform(2.0, 2.4) for _ in range(stages)]
        weight = [chance.uniform(0.3, 0.5) * s for s in backward]
        times = stage_times(forward, backward, chance.choice([0.0, 0.05, 0.7]), weight)
        whole = timeline(action_lists(split, ranks, microbatches), times)
        extended = run_schedule(split, ranks, microbatches, times)
        assert extended.makespan_s == pytest.approx(whole.makespan_s, rel=1e-12)
        action_s = [sum(map(times.of, actions)) for actions in action_lists(split, ranks, microbatches)]
        each = microbatches / microbatch_copies(split)
        assert busy_s(stages_by_rank(split, ranks), each, times) == pytest.approx(action_s)
        assert extended.in_flight == whole.in_flight
        assert extended.weight_waits == whole.weight_waits


def test_a_step_of_a_million_microbatches_is_extrapolated() -> None:
    """Simulated action by action it would take minutes."""
    times = stage_times([1.0] * 4, [2.0] * 4)
    for name in ("gpipe", "1f1b"):
        assert run_schedule(split_of(name, 4), 4, 10**6, times).makespan_s == pytest.approx(3.0 * (10**6 + 3))


def test_one_rank_runs_every_microbatch() -> None:
    t = run_schedule(None, 1, 7, stage_times([1.0], [2.0]))
    assert (t.makespan_s, t.in_flight) == (21.0, ({0: 1},))


def test_overlapped_actions_start_and_end_together() -> None:
    order = [
        [
            Action("forward", 0, 0),
            Action("forward", 0, 1, overlaps_next=True),
            Action("backward", 0, 0),
            Action("backward", 0, 1),
        ]
    ]
    times = stage_times([1.0], [2.0])
    assert plain_ends_s(order, times) == [[1.0, 4.0, 4.0, 6.0]]
    assert [(r.start_s, r.end_s) for r in action_spans(order, times)] == [
        (0.0, 1.0),
        (1.0, 2.0),
        (2.0, 4.0),
        (4.0, 6.0),
    ]
