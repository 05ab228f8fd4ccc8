"""Pipeline schedules in seconds: makespan, idle time and microbatches in flight.

`planc.schedules` says what a rank runs after what; here the lists are run with each stage's time. Long
steps are run until they repeat themselves and then extended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from operator import itemgetter, sub

from planc.diag.fast_dataclass import dataclass
from planc.ir.plan import Split
from planc.pipeline.actions import Action, Kind, Repeat
from planc.pipeline.dag import MISSING, turns_of
from planc.pipeline.lower_bound import sketch_of
from planc.pipeline.schedule import Schedule, Shape
from planc.pipeline.simulate import Order, simulate
from planc.pipeline.split import action_lists, schedule_of, shape_of, stages_of
from planc.pipeline.stage_times import StageTimes
from planc.pipeline.steady_state import core_of, steps_of

MOST_ACTIONS = 60_000
"""Schedules that do not repeat themselves are run whole up to here: a tenth of a second."""
VERY_MANY_ACTIONS = 500_000
"""Steps of hundreds of stages whose shortest repeating run has more are run for two rounds alone."""
REPEATS = 3
"""Rounds that must look alike: no action depends on one that is more rounds away, since warm-ups hold at
most two rounds of microbatches."""
NEARLY = 1.5
"""A step that is only so many times as long as a shorter one is run itself."""
SAME = 1e-9


@dataclass(frozen=True)
class Timeline:
    """What a simulation gives. `in_flight[rank]` maps virtual stage to the microbatches held at the rank's
    fullest moment, `weight_waits[rank]` to those of them whose weights' gradient alone is missing."""

    makespan_s: float
    in_flight: tuple[dict[int, int], ...]
    weight_waits: tuple[dict[int, int], ...] = ()


def run_schedule(split: Split | None, ranks: int, microbatches: int, times: StageTimes) -> Timeline:
    """Run a step of a plan's pipeline; one rank and stage without `split`."""
    if split is None:
        return Timeline(microbatches * (times.forward_s[0] + times.backward_s[0]), ({0: 1},), ({},))
    if split.order:
        return timeline(action_lists(split, ranks, microbatches), times)
    schedule = schedule_of(split)
    return (_phased if schedule.forwards_first else _repeated)(schedule, shape_of(split, ranks, microbatches), times)


def timeline(order: Order, times: StageTimes) -> Timeline:
    """Run these lists to their end."""
    held = [most_held([Repeat(1, tuple(actions))] if actions else []) for actions in order]
    makespan = max(simulate(order, times).clock)
    return Timeline(makespan, tuple(h for h, _ in held), tuple(w for _, w in held))


@lru_cache(maxsize=256)
def _held(schedule: Schedule, size: Shape) -> tuple[tuple[dict[int, int], ...], tuple[dict[int, int], ...]]:
    held = [most_held(turns) for turns in turns_of(schedule, size)]
    return tuple(h for h, _ in held), tuple(w for _, w in held)


def held_at_least(split: Split, ranks: int, microbatches: int, rank: int = 0) -> dict[int, int]:
    """Microbatches of each virtual stage that a rank holds at its fullest moment, at least.

    Those of a shorter step: a longer one begins like it.
    """
    whole = shape_of(split, ranks, microbatches)
    in_rounds = schedule_of(split).in_rounds
    period = whole.round if in_rounds else ranks
    short = _short(whole, min(microbatches, 2 * period))
    if schedule_of(split).need(short) is not None:
        return dict.fromkeys(stages_of(split, ranks, rank)[:1], 1)
    return _held_at_least(schedule_of(split), short if in_rounds else short._replace(fixed_round=0), rank)


@lru_cache(maxsize=4096)
def _held_at_least(schedule: Schedule, size: Shape, rank: int) -> dict[int, int]:
    return most_held(schedule.rank_actions(size, rank))[0]


def forget() -> None:
    """Empty what is kept of the schedules' shapes: what measures a first time asks for it."""
    for kept in (_held, _held_at_least, _apart, steps_of, core_of, sketch_of, turns_of):
        kept.cache_clear()


def _short(whole: Shape, microbatches: int) -> Shape:
    return whole._replace(microbatches=microbatches, fixed_round=whole.round)


def _repeated(schedule: Schedule, whole: Shape, times: StageTimes) -> Timeline:
    """A schedule that alternates in its middle: run until round after round looks alike, then extended."""
    period = whole.round if schedule.in_rounds else whole.ranks
    rest = whole.microbatches % period
    count = 2 * (REPEATS + 1) * period + rest
    if (
        2 * min(count, whole.microbatches) * len(times.forward_s) > VERY_MANY_ACTIONS
        and whole.microbatches > 3 * period
    ):
        return _extended(schedule, whole, times, 2 * period + rest, period)
    while NEARLY * count < whole.microbatches:
        size = _short(whole, count)
        ends, end_s = steps_of(schedule, size).run(times)
        round_s = _round_s(ends, _apart(schedule, size, period))
        if round_s is not None:
            rounds = (whole.microbatches - count) // period
            return Timeline(end_s + rounds * round_s, *_held(schedule, size))
        if 2 * count * len(times.forward_s) > MOST_ACTIONS:
            return _extended(schedule, whole, times, count, period)
        count += count // period * period
    return _whole(schedule, whole, times)


@lru_cache(maxsize=64)
def _apart(schedule: Schedule, size: Shape, period: int) -> tuple[Sequence[int], Sequence[int]]:
    """Entries, and those a round after each of them, for REPEATS rounds before the drain."""
    end = size.microbatches // period * period - REPEATS * period
    begin = end - REPEATS * period
    one: list[int] = []
    after: list[int] = []
    for entries in steps_of(schedule, size).end:
        if MISSING not in (later := entries[begin:end]):
            one += entries[begin - period : end - period]
            after += later
    return one, after


def _round_s(ends: list[float], apart: tuple[Sequence[int], Sequence[int]]) -> float | None:
    """Seconds of a round, if the rounds before the drain repeat the ones before them exactly."""
    one, after = (map(ends.__getitem__, entries) for entries in apart)
    rounds = list(map(sub, after, one))
    low, high = min(rounds), max(rounds)
    return high if high - low <= SAME * max(ends) else None


def _phased(schedule: Schedule, whole: Shape, times: StageTimes) -> Timeline:
    """All forwards come first: run whole, unless it is very long."""
    count = max(2 * whole.ranks, MOST_ACTIONS // (2 * whole.stages))
    if count + whole.ranks >= whole.microbatches:
        return _whole(schedule, whole, times)
    count -= (count - whole.microbatches) % whole.ranks
    return _extended(schedule, whole, times, count, whole.ranks)


def _whole(schedule: Schedule, whole: Shape, times: StageTimes) -> Timeline:
    return Timeline(steps_of(schedule, whole).run(times)[1], *_held(schedule, whole))


def _extended(schedule: Schedule, whole: Shape, times: StageTimes, count: int, period: int) -> Timeline:
    """Each further round as long as the last one: exact once the slowest rank sets the pace."""
    one = _whole(schedule, _short(whole, count), times)
    two = _whole(schedule, _short(whole, count + period), times)
    rounds = (whole.microbatches - count) // period

    def grown(a: dict[int, int], b: dict[int, int]) -> dict[int, int]:
        return {stage: n + rounds * (b.get(stage, 0) - n) for stage, n in a.items()}

    return Timeline(
        makespan_s=one.makespan_s + rounds * (two.makespan_s - one.makespan_s),
        in_flight=tuple(map(grown, one.in_flight, two.in_flight)),
        weight_waits=tuple(map(grown, one.weight_waits, two.weight_waits)),
    )


CHANGE: dict[Kind, int] = {"forward": 1, "backward": -1, "backward_input": 0, "backward_weight": -1}
"""Of the microbatches that a rank holds."""
KIND_AND_STAGE = itemgetter(0, 1)


def most_held(turns: Sequence[Repeat]) -> tuple[dict[int, int], dict[int, int]]:
    """At a rank's fullest moment, the first of them, the microbatches held of each stage, and those of them that
    wait for their weights' gradient alone.

    A microbatch is held from its forward to the end of its backward, the weights' part included: that part
    needs the matmuls' inputs, 32 of the 34 bytes a layer saves per element with flash attention (Qi et al.
    2023, table 1). Repeat are at their fullest the first time, or the last time if they leave more than they met.
    """
    held = peak = before = again = first = 0
    for at, (times, actions, _) in enumerate(turns):
        after = list(accumulate(CHANGE[action.kind] for action in actions))
        change, most = after[-1], max(after)
        more = times - 1 if change > 0 else 0
        if held + more * change + most > peak:
            peak = held + more * change + most
            before, again, first = at, more, after.index(most) + 1
        held += times * change
    counts: Counter[tuple[Kind, int]] = Counter()
    if peak:
        for times, actions, _ in [*turns[:before], turns[before]._replace(times=again)]:
            _count(counts, actions, times)
        _count(counts, turns[before].actions[:first], 1)
    return _left(counts)


def _count(counts: Counter[tuple[Kind, int]], actions: Sequence[Action], times: int) -> None:
    for key in map(KIND_AND_STAGE, actions):
        counts[key] += times


def _left(counts: Counter[tuple[Kind, int]]) -> tuple[dict[int, int], dict[int, int]]:
    """Of each stage the microbatches that are held after so many actions, and those of them that wait."""
    most: dict[int, int] = {}
    waits: dict[int, int] = {}
    for (kind, stage), n in counts.items():
        if kind == "backward_input":
            waits[stage] = n - counts["backward_weight", stage]
        elif CHANGE[kind]:
            most[stage] = most.get(stage, 0) + CHANGE[kind] * n
    return {s: n for s, n in most.items() if n}, {s: n for s, n in waits.items() if n}
