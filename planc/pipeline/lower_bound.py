"""Lower bounds on the time of a pipeline step (s), from the seconds of each stage.

`CriticalPaths.lower_bound_s` is a closed form. `makespan_lower_bound_s` simulates a step with fewer dependencies, which
is tighter and slower. The run time of neither grows with the number of microbatches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from operator import sub
from typing import NamedTuple

from planc.diag.fast_dataclass import dataclass
from planc.ir.plan import Split
from planc.pipeline.actions import Action, Repeat
from planc.pipeline.dag import Entries, RankEntries, costs_s, in_order, rank_lists
from planc.pipeline.schedule import Schedule, ScheduleShape
from planc.pipeline.simulate import Simulation
from planc.pipeline.split import microbatch_copies, schedule_of, shape_of
from planc.pipeline.stage_times import StageTimes, busy_s

FOLLOWED_MICROBATCHES = 4
"""Number of microbatches whose waits a relaxed step keeps: the bounds of the published search spaces are then 0.1 %
below the simulated makespan on average, 0.5 % at most."""
MAX_MICROBATCHES_PER_RANK = 64
"""Above this number the bubble is so small that the busiest rank is as good a bound."""
ROUNDING = 1 - 1e-11
"""Factor that lowers bounds by more than the rounding differences between summation orders."""
StageCounts = tuple[tuple[int, int], ...]
"""Kinds of stages, each with its number of stages."""


class RankPath(NamedTuple):
    """The virtual stages of a rank, and those before and after them, as numbers of stages of each kind."""

    on: StageCounts
    before: StageCounts
    """Stages before the rank's first one."""
    after: StageCounts
    """Stages after the rank's last one."""
    hand_overs: int
    """Number of sends between ranks before a microbatch reaches the first stage of this rank."""


class CriticalPaths:
    """The critical paths through each rank of a pipeline, found once and then evaluated for any stage times.

    All stages of a kind take the same time. Among ranks with the same kinds of stages, only two can bound the step: the
    rank with the most stages before it, and the rank with the most stages before and after it.
    """

    def __init__(self, split: Split | None, stages_by_rank: Sequence[Sequence[int]], kinds: Sequence[int]) -> None:
        """`split` is the plan's pipeline, None without one. `stages_by_rank` has the virtual stages of each rank, and
        `kinds` the kind of each virtual stage."""
        self._copies = microbatch_copies(split)
        self._enters_at_first_stage = split is not None and not split.order and self._copies == 1
        self._splits_backward = split is not None and split.splits_backward
        self._stages = _counts(kinds)
        groups: dict[StageCounts, list[RankPath]] = {}
        for stages in stages_by_rank:
            first, after = min(stages), max(stages) + 1
            on = _counts([kinds[v] for v in stages])
            groups.setdefault(on, []).append(RankPath(on, _counts(kinds[:first]), _counts(kinds[after:]), first))
        self._paths = list(dict.fromkeys(path for group in groups.values() for path in self._longest(group)))
        self._on_ranks = list(groups)

    def _longest(self, group: list[RankPath]) -> tuple[RankPath, RankPath]:
        def around(path: RankPath) -> tuple[int, int]:
            return _stages(path.after) + (0 if self._splits_backward else path.hand_overs), path.hand_overs

        return max(group, key=lambda path: path.hand_overs), max(group, key=around)

    def lower_bound_s(self, times: StageTimes, microbatches: int) -> float:
        """Return a lower bound on the step time (s): the longest of the critical paths through one rank.

        F, B and W are the seconds of a stage's forward, backward and wgrad, and m is the number of microbatches. The
        path of a rank with the stages a to b is the longer of

            fill + m * sum(F + B of its stages) + drain        fill = sum(F + send, stages before a)
            wait + m * sum(B of its stages) + drain            wait = sum(F, all stages) + sum(B, stages after b)
                                                               drain = sum(B + send, stages before a)

        Fill: the first microbatch passes the stages before the rank. Wait: it passes all stages forward, and those
        after the rank backward. Drain: the last backward passes the stages before the rank. If the schedule splits the
        backward, wait has B - W instead of B, and drain is 0, since the rank may run wgrads meanwhile. Schedules from a
        file or with two copies of each stage may start anywhere: only the busiest rank bounds them.

        `times` has the seconds of one microbatch on each kind of stage; m is `microbatches`.
        """
        forward_s, backward_s = times.forward_s, times.backward_s
        on_rank_s = {on: (_total_s(forward_s, on), _total_s(backward_s, on)) for on in self._on_ranks}
        each = microbatches / self._copies
        if not self._enters_at_first_stage:
            return max([each * (forwards_s + backwards_s) for forwards_s, backwards_s in on_rank_s.values()])
        inputs_s = list(map(sub, backward_s, times.weight_s)) if self._splits_backward else backward_s
        all_forwards_s, bound_s = _total_s(forward_s, self._stages), 0.0
        for on, before, after, hand_overs in self._paths:
            forwards_s, backwards_s = on_rank_s[on]
            send_s = hand_overs * times.send_s
            fill_s = _total_s(forward_s, before) + send_s + each * (forwards_s + backwards_s)
            wait_s = all_forwards_s + _total_s(inputs_s, after) + microbatches * backwards_s
            longer_s = fill_s if fill_s > wait_s else wait_s
            if not self._splits_backward:
                longer_s += _total_s(backward_s, before) + send_s  # the drain
            if longer_s > bound_s:
                bound_s = longer_s
        return bound_s


def _counts(kinds: Sequence[int]) -> StageCounts:
    return tuple(sorted(Counter(kinds).items()))


def _stages(counts: StageCounts) -> int:
    return sum(n for _, n in counts)


def _total_s(seconds: Sequence[float], counts: StageCounts) -> float:
    total_s = 0.0
    for kind, n in counts:
        total_s += n * seconds[kind]
    return total_s


def makespan_lower_bound_s(
    split: Split | None, stages_by_rank: Sequence[Sequence[int]], microbatches: int, times: StageTimes
) -> float:
    """Return a lower bound on the step time (s): the time of the busiest rank, or that of a step in which only a few
    microbatches wait for other ranks.

    Args:
        split: the plan's `split` sentence; None for one rank with one stage.
        stages_by_rank: the virtual stages of each rank.
        microbatches: number of microbatches of a step.
        times: seconds of one microbatch on each virtual stage.
    """
    ranks = len(stages_by_rank)
    busiest_s = max(busy_s(stages_by_rank, microbatches / microbatch_copies(split), times)) * ROUNDING
    if split is None or split.order or microbatches > MAX_MICROBATCHES_PER_RANK * ranks:
        return busiest_s
    relaxed = relaxed_order(schedule_of(split), shape_of(split, ranks, microbatches), FOLLOWED_MICROBATCHES)
    return max(busiest_s, relaxed.makespan_s(times) * ROUNDING)


@dataclass(frozen=True)
class FollowedRepeat:
    """A `Repeat` of a rank in a step in which only a few microbatches are simulated."""

    times: int
    costs: list[int]
    """Cost of each of its actions, as indices into `costs_s`."""
    followed: list[tuple[int, int]]
    """For each simulated action, the number of whole repetitions of the `Repeat` before it, and of further actions."""


@dataclass(frozen=True)
class RelaxedOrder:
    """Execution order of a relaxed step: a few microbatches are simulated and wait as in the real step, all others wait
    for no other rank.

    Without a wait, no action starts later, so the relaxed step is never longer than the real one, for any stage times.
    Actions that are not simulated fill the gaps between the others, so only the sum of their seconds matters.
    """

    waits: list[int]
    entries: list[int]
    """Indices of the simulated actions, numbered rank by rank, in execution order."""
    rank: list[int]
    cost: list[int]
    """By index: the rank of a simulated action, and the index of its seconds in `costs_s`."""
    pairs: tuple[tuple[int, int], ...]
    lists: list[list[FollowedRepeat]]

    def makespan_s(self, times: StageTimes) -> float:
        """Return the seconds of the relaxed step. `times` has the seconds of one microbatch on each virtual stage."""
        seconds = costs_s(times, self.pairs)
        first_s: list[float] = []
        kinds_s: list[tuple[int, float, float]] = []
        for mine in self.lists:
            starts_s = self._starts_s(mine, seconds)
            first_s.append(starts_s[0])
            for start_s, next_s in pairwise(starts_s):
                cost_s = seconds[self.cost[len(kinds_s)]]
                kinds_s.append((self.rank[len(kinds_s)], cost_s, next_s - start_s - cost_s))
        simulation = Simulation(kinds_s, times.send_s, first_s)
        simulation.run(self.waits, self.entries)
        return max(simulation.clock_s)

    def _starts_s(self, mine: list[FollowedRepeat], seconds: list[float]) -> list[float]:
        """Return the start (s) of each simulated action of a rank, then the rank's end (s), as if the rank were never
        idle."""
        starts_s: list[float] = []
        before_s = 0.0
        for repeat in mine:
            parts = [0.0, *accumulate(map(seconds.__getitem__, repeat.costs))]
            starts_s += [before_s + again * parts[-1] + parts[i] for again, i in repeat.followed]
            before_s += repeat.times * parts[-1]
        return [*starts_s, before_s]


@lru_cache(maxsize=256)
def relaxed_order(schedule: Schedule, shape: ScheduleShape, count: int) -> RelaxedOrder:
    """Return the relaxed step of a named `schedule` in which `count` microbatches are simulated, for `shape` (ranks,
    chunks, microbatches)."""
    return _Relaxation(rank_lists(schedule, shape), shape, followed(shape.microbatches, schedule.copies, count)).order()


def followed(microbatches: int, copies: int, count: int) -> list[int]:
    """Return the numbers of the microbatches to simulate: `count` of all `microbatches`, evenly spaced from the first
    to the last. If `copies` is 2 (dualpipe), they are chosen in each direction."""
    each = microbatches // copies
    some = {i * (each - 1) // (count - 1) for i in range(count)}
    return sorted(copies * m + direction for m in some for direction in range(copies))


class _FollowedAction(NamedTuple):
    """A simulated action of a `Repeat`, in a step in which only a few microbatches are simulated."""

    again: int
    """Number of whole repetitions of the `Repeat` before it."""
    before: int
    """Number of its actions since then. Overlapped actions start together."""
    at: int
    """Its index among the actions of the `Repeat`."""
    microbatch: int


class _Relaxation:
    """Builds a `RelaxedOrder`. Simulated microbatches are renumbered from 0."""

    def __init__(self, lists: Sequence[Sequence[Repeat]], shape: ScheduleShape, follow: list[int]) -> None:
        self.number = {m: i for i, m in enumerate(follow)}
        self._residues: dict[int, dict[int, list[int]]] = {}
        met = [[self._followed_actions(repeat) for repeat in mine] for mine in lists]
        followed_lists = [[Repeat(1, tuple(self._actions(*rank)))] for rank in zip(lists, met, strict=True)]
        self.entries = Entries(followed_lists)
        assert self.entries.stages == shape.stages
        self.rank: list[int] = []
        self.cost: list[int] = []
        self.lists = [
            [self._followed(rank, repeat, places) for repeat, places in zip(mine, found, strict=True)]
            for rank, (mine, found) in enumerate(zip(lists, met, strict=True))
        ]

    def order(self) -> RelaxedOrder:
        ranks, begin = [], 0
        for mine in self.entries.ranks:
            end = begin + len(mine.kinds)
            ranks.append(RankEntries(mine.wait_at, mine.end_at, list(range(begin, end)), []))
            begin = end
        waits, entries = list[int](), list[int]()
        complete = in_order(ranks, self.entries.ended, waits, entries)
        assert complete, "a schedule that ends with all its waits ends with fewer"
        return RelaxedOrder(waits, entries, self.rank, self.cost, tuple(self.entries.pairs), self.lists)

    def _followed_actions(self, repeat: Repeat) -> list[_FollowedAction]:
        times, actions, step = repeat
        by_residue = self._by_residue(step)
        found = []
        overlapped = 0
        for at, (kind, _, first, overlaps_next) in enumerate(actions):
            if kind != "backward_weight":
                for m in by_residue.get(first % step, ()):
                    if 0 <= (again := (m - first) // step) < times:
                        found.append(_FollowedAction(again, at - overlapped, at, m))
            overlapped = int(overlaps_next)
        return sorted(found)

    def _by_residue(self, step: int) -> dict[int, list[int]]:
        """Return the simulated microbatches, grouped by their number modulo `step`."""
        known = self._residues.get(step)
        if known is None:
            known = self._residues[step] = {}
            for m in self.number:
                known.setdefault(m % step, []).append(m)
        return known

    def _actions(self, mine: Sequence[Repeat], met: list[list[_FollowedAction]]) -> Iterator[Action]:
        """Yield the simulated actions of a rank with renumbered microbatches. Overlapped actions wait separately."""
        for repeat, places in zip(mine, met, strict=True):
            for _, _, at, m in places:
                kind, stage, _, _ = repeat.actions[at]
                yield Action(kind, stage, self.number[m])

    def _followed(self, rank: int, repeat: Repeat, met: list[_FollowedAction]) -> FollowedRepeat:
        """Record the rank and the cost of each simulated action of a `Repeat`."""
        actions, first = repeat.actions, self.entries.first_cost
        costs = [first[kind] + stage for kind, stage, _, _ in actions]
        for _, before, at, _ in met:
            self.rank.append(rank)
            pair = actions[before].overlaps_next
            self.cost.append(self.entries.pair_cost(costs[before], costs[before + 1]) if pair else costs[at])
        return FollowedRepeat(repeat.times, costs, [(again, before) for again, before, _, _ in met])
