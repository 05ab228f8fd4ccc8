"""Simulates long steps only until their steady state is periodic in time, and extrapolates the rest exactly.

After the warm-up, all ranks repeat the same actions with later microbatches: a period. If each period can run after the
one before and no action waits for more than one period back, the end times of a period are always the same max-plus
linear function of those of the previous one. Such a function commutes with adding a constant. So once all end times of
a period equal those of an earlier one plus a constant, the step continues like that until its cool-down.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from operator import sub

from planc.diag.fast_dataclass import dataclass
from planc.pipeline.actions import Repeat
from planc.pipeline.dag import NO_WAIT, Entries, ExecutionOrder, execution_order, in_order, rank_lists
from planc.pipeline.schedule import Schedule, ScheduleShape
from planc.pipeline.simulate import Simulation
from planc.pipeline.stage_times import StageTimes

LISTED_PERIODS = 2
"""Number of periods in the order of a long step: the first one may wait for the warm-up."""
MIN_REPEATS = 4
"""Smallest number of further periods for which a step is written as a period and its repeats."""
SAME_GROWTH = 1e-12
"""Tolerance for equal growth of end times, relative to the time so far: some thousand times the rounding error of a
sum."""
MAX_SIMULATED_ENTRIES = 100_000
"""Number of entries after which a step that is not yet periodic is extrapolated anyway: a twentieth of a second."""


@dataclass(frozen=True)
class StepOrder:
    """The execution order of a step: warm-up, `LISTED_PERIODS` periods, cool-down. The last of these periods is
    repeated `repeats` further times. A short step has no period."""

    order: ExecutionOrder
    begin: int = 0
    end: int = 0
    """The entries of the last listed period."""
    repeats: int = 0
    max_lag: int = 1
    """Number of periods in which every rank starts one microbatch, at least one: the longest cycle of waits spans no
    more."""

    def makespan_s(self, times: StageTimes) -> float:
        """Return the seconds of the step. `times` has the seconds of one microbatch on each virtual stage."""
        order = self.order
        simulation = Simulation(order.entry_kinds_s(times), times.send_s, [0.0] * order.ranks)
        simulation.run(order.waits[: self.end], order.kinds[: self.end])
        self._run_repeats(simulation)
        simulation.run(order.waits[self.end :], order.kinds[self.end :])
        return max(simulation.clock_s)

    def _run_repeats(self, simulation: Simulation) -> None:
        """Simulate periods until their end times are steady, extrapolate, and simulate a remainder of less than one
        cycle."""
        period = self.order.waits[self.begin : self.end], self.order.kinds[self.begin : self.end]
        left = self.repeats
        while left:
            simulation.run(*period)
            left -= 1
            if (self.repeats - left) % self.max_lag == 0 and left:
                steady = self._period_of_ends(simulation)
                if steady is not None:
                    lag, growth_s = steady
                    self._skip(simulation, left // lag * growth_s)  # whole cycles; the rest of one is simulated
                    left %= lag
                    for _ in range(left):
                        simulation.run(*period)
                    return

    def _period_of_ends(self, simulation: Simulation) -> tuple[int, float] | None:
        """Return the number of periods after which all end times grow by the same amount, and that amount (s); None if
        there is no such number yet."""
        length, ends = self.end - self.begin, simulation.ends_s
        last, tolerance_s = ends[-length:], SAME_GROWTH * ends[-1]
        growth: list[float] = []
        for lag in range(1, self.max_lag + 1):
            at = len(ends) - (lag + 1) * length
            # A cheap test of the first and the last entry, before all are compared.
            if abs((last[0] - ends[at]) - (last[-1] - ends[at + length - 1])) <= tolerance_s:
                growth = list(map(sub, last, ends[at : at + length]))
                if max(growth) - min(growth) <= tolerance_s:
                    return lag, max(growth)
        if len(ends) > MAX_SIMULATED_ENTRIES:
            at = len(ends) - (self.max_lag + 1) * length
            return self.max_lag, max(map(sub, last, ends[at : at + length]))
        return None

    def _skip(self, simulation: Simulation, seconds: float) -> None:
        """Advance all times by `seconds` without a simulation. Later entries wait only for entries of the last two
        periods."""
        recent = slice(-2 * (self.end - self.begin), None)
        simulation.ends_s[recent] = [end + seconds for end in simulation.ends_s[recent]]
        simulation.clock_s[:] = [clock + seconds for clock in simulation.clock_s]


@lru_cache(maxsize=256)
def step_order(schedule: Schedule, shape: ScheduleShape) -> StepOrder:
    """Return the execution order of a step of a named `schedule`, for `shape` (ranks, chunks, microbatches). It is
    cached for all steps that differ only in the length of their steady state."""
    lists = rank_lists(schedule, shape)
    steady = tuple(map(_steady_repeat, lists))
    repeats = min(mine[at].times for mine, at in zip(lists, steady, strict=True)) - LISTED_PERIODS
    if repeats >= MIN_REPEATS:
        fewer = repeats * lists[0][steady[0]].step
        short = ScheduleShape(
            shape.ranks, shape.chunks, shape.microbatches - fewer, shape.round if schedule.in_rounds else 0
        )
        shortened = tuple(_without_repetitions(mine, at, repeats) for mine, at in zip(lists, steady, strict=True))
        if rank_lists(schedule, short) == shortened and (found := periodic_order(schedule, short, steady)):
            return replace(found, repeats=repeats)
    return StepOrder(execution_order(lists))


def _steady_repeat(repeats: list[Repeat]) -> int:
    """Return the index of a rank's steady state: the `Repeat` with the most different actions, and among these the
    longest."""

    def size(at: int) -> tuple[int, int]:
        times, actions, step = repeats[at]
        return len({action[:2] for action in actions}) if times >= LISTED_PERIODS else 0, times * step

    return max(range(len(repeats)), key=size)


def _without_repetitions(repeats: list[Repeat], at: int, times: int) -> list[Repeat]:
    """Return a rank's list with `times` fewer repetitions of the `Repeat` with the index `at`, and correspondingly
    fewer microbatches."""
    fewer = times * repeats[at].step
    cool_down = (r._replace(actions=tuple(a.shifted(-fewer) for a in r.actions)) for r in repeats[at + 1 :])
    return [*repeats[:at], repeats[at]._replace(times=repeats[at].times - times), *cool_down]


@lru_cache(maxsize=64)
def periodic_order(schedule: Schedule, short: ScheduleShape, steady: tuple[int, ...]) -> StepOrder | None:
    """Return the order of a step with a repeatable period; None if its last period cannot be repeated.

    `schedule` and `short` give the lists of the shortened step, which has LISTED_PERIODS periods. `steady` is the index
    of each rank's steady state in its list.
    """
    lists = rank_lists(schedule, short)
    entries, waits, kinds = Entries(lists), list[int](), list[int]()
    cuts = [
        [0] * short.ranks,
        *(
            [mine.after(at, n) for mine, at in zip(entries.ranks, steady, strict=True)]
            for n in range(LISTED_PERIODS + 1)
        ),
        [len(mine.kinds) for mine in entries.ranks],
    ]
    ends = []
    for begin, end in pairwise(cuts):
        parts = [mine.between(a, b) for mine, a, b in zip(entries.ranks, begin, end, strict=True)]
        if not in_order(parts, entries.ended, waits, kinds):
            return None
        ends.append(len(waits))
    max_lag = max(1, short.ranks // lists[0][steady[0]].step)
    found = StepOrder(entries.order(waits, kinds), begin=ends[-3], end=ends[-2], max_lag=max_lag)
    return found if repeats_itself(found) else None


def repeats_itself(step: StepOrder) -> bool:
    """True if the last two listed periods of `step` run the same actions, and no later entry waits for an entry before
    them."""
    order, begin, end = step.order, step.begin, step.end
    before = begin - (end - begin)
    return order.kinds[before:begin] == order.kinds[begin:end] and all(
        wait == NO_WAIT or at + wait >= before for at, wait in enumerate(order.waits[begin:], begin)
    )
