"""The least seconds of a step: its lists, of which only some microbatches wait for the rank before them.

An action that need not wait begins no later, and so nothing after it does: fewer waits, no longer step, whatever
the seconds of the stages. The microbatches that are followed find how long ranks idle until the first one comes to
them, while the last one leaves them, and what builds up between; what a rank does between two of them is a sum.
Followed are few, so that a step of any length takes no longer to bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from operator import sub

from planc.diag.fast_dataclass import dataclass
from planc.ir.plan import Split
from planc.pipeline.actions import Action, Repeat
from planc.pipeline.dag import MISSING, NEVER_S, PARTS, START, Lane, in_order, seconds_of, turns_of
from planc.pipeline.schedule import Schedule, Shape, stages_at
from planc.pipeline.split import microbatch_copies, schedule_of, shape_of, splits_backward
from planc.pipeline.stage_times import StageTimes, busy_s

FOLLOWED = 4
"""Microbatches: the bounds of what the published searches simulate are 0.1 % below it on average, 0.5 % at most."""

MAX_ROUNDS = 64
"""Rounds of one microbatch per rank; a longer step has a bubble so small that the busiest rank bounds it."""
ROUNDING = 1 - 1e-11
"""Sums in another order differ in the last digits: bounds are lowered by more than that."""


def critical_path_lower_bound_s(
    split: Split | None, stages_by_rank: Sequence[Sequence[int]], microbatches: int, times: StageTimes
) -> float:
    """Lower bound on the makespan (s) in closed form: the longest of the critical paths through one rank.

    With F, B and W the seconds of a stage's forward, backward and weights' part (I = B - W), a rank whose first
    stage is a and last stage b is bounded by the longer of

        fill + m * sum(F + B on the rank) + drain          fill  = sum(F + send before a)
        sum(F of all stages) + sum(B after b) + m * sum(B on the rank) + drain

    that is, its first microbatch comes through the stages before it, or its first backward through all stages and
    back; in between it is never idle; its last backward returns through the stages before it, drain = sum(B + send
    before a). Where the schedule splits the backward, I stands for B after b, and drain is 0: the rank may
    compute gradients of weights while the last microbatch returns. The busiest rank alone bounds a schedule with
    two copies of a stage or from a file, whose first microbatch may enter anywhere.

    Arguments: the virtual stages of each rank, the microbatches of a step, the seconds of one microbatch.
    Raises nothing; the bound holds for every schedule and any times.
    """
    busy = busy_s(stages_by_rank, microbatches / microbatch_copies(split), times)
    if split is None or split.order or microbatch_copies(split) > 1:
        return max(busy)
    apart, send_s = splits_backward(split), times.send_s
    inputs = list(map(sub, times.backward_s, times.weight_s)) if apart else times.backward_s
    forward_before_s = [0.0, *accumulate(times.forward_s)]
    backward_before_s = [0.0, *accumulate(times.backward_s)]
    input_before_s = [0.0, *accumulate(inputs)] if apart else backward_before_s
    bound_s = 0.0
    for stages, rank_busy_s in zip(stages_by_rank, busy, strict=True):
        first, after = min(stages), max(stages) + 1
        fill_s = forward_before_s[first] + first * send_s
        drain_s = 0.0 if apart else backward_before_s[first] + first * send_s
        turn_s = forward_before_s[-1] + input_before_s[-1] - input_before_s[after]
        backward_s = microbatches * sum([times.backward_s[v] for v in stages])
        bound_s = max(bound_s, fill_s + rank_busy_s + drain_s, turn_s + backward_s + drain_s)
    return bound_s


def makespan_lower_bound_s(
    split: Split | None, stages_by_rank: Sequence[Sequence[int]], microbatches: int, times: StageTimes
) -> float:
    """Lower bound on the makespan (s): the busiest rank, plus the stalls of a few simulated microbatches."""
    ranks = len(stages_by_rank)
    busiest_s = max(busy_s(stages_by_rank, microbatches / microbatch_copies(split), times)) * ROUNDING
    if split is None or split.order or microbatches > MAX_ROUNDS * ranks:
        return busiest_s
    shape = shape_of(split, ranks, microbatches)
    return max(busiest_s, sketch_of(schedule_of(split), shape).run(times) * ROUNDING)


Place = tuple[int, int]
"""How many times the turns were done before, and the action in them."""


@dataclass(frozen=True)
class Sketch:
    """One entry for each followed action of a step, in an order in which each comes after what it waits for.

    `need` is the entry on another rank whose end it waits for, `what` its number among all entries, rank by rank.
    """

    need: list[int]
    what: list[int]
    rank: list[int]
    cost: list[int]
    """Of entries as `what` counts them: who runs them, and the place of their seconds."""
    pairs: tuple[tuple[int, int], ...]
    turns: list[list[tuple[int, list[int], list[Place]]]]
    """Each rank's: how many times, the places of their actions' seconds, and which of them are followed."""

    def run(self, times: StageTimes) -> float:
        """Seconds of the step at least: of the rank that works and idles longest."""
        seconds, send = seconds_of(times, self.pairs), times.send_s
        before_s, busy_s = self._before_s(seconds)
        idle_s = [0.0] * len(busy_s)
        ends = [NEVER_S]
        for need, what in zip(self.need, self.what, strict=True):
            rank = self.rank[what]
            start = before_s[what] + idle_s[rank]
            ready = ends[need] + send
            if ready > start:
                idle_s[rank] += ready - start
                start = ready
            ends.append(start + seconds[self.cost[what]])
        return max(map(sum, zip(busy_s, idle_s, strict=True)))

    def _before_s(self, seconds: list[float]) -> tuple[list[float], list[float]]:
        """What each entry's rank works before it, and in all."""
        before_s: list[float] = []
        busy_s = []
        for mine in self.turns:
            busy = 0.0
            for times, costs, places in mine:
                parts = [0.0, *accumulate(map(seconds.__getitem__, costs))]
                before_s += [busy + again * parts[-1] + parts[i] for again, i in places]
                busy += times * parts[-1]
            busy_s.append(busy)
        return before_s, busy_s


@lru_cache(maxsize=256)
def sketch_of(schedule: Schedule, size: Shape) -> Sketch:
    """The sketch of a bundled schedule."""
    found = _Found(size.stages, followed(size.microbatches, schedule.copies))
    for rank, mine in enumerate(turns_of(schedule, size)):
        own = stages_at(schedule.placement, size.ranks, size.chunks, rank) if schedule.copies == 1 else ()
        found.add(mine, own)
    need: list[int] = []
    what: list[int] = []
    ends = in_order(found.lanes, found.done, need, what)
    assert ends, "lists that end with all their waits end with fewer"
    return Sketch(need, what, found.rank, found.cost, tuple(found.pairs), found.turns)


def followed(microbatches: int, ways: int) -> list[int]:
    """The first one, the last one and some between; of each way that they go."""
    each = microbatches // ways
    some = {i * (each - 1) // (FOLLOWED - 1) for i in range(FOLLOWED)}
    return sorted(ways * m + way for m in some for way in range(ways))


class _Found:
    """The entries so far; `done` as in `graph`, for the followed microbatches alone."""

    def __init__(self, stages: int, follow: list[int]) -> None:
        self.stages = stages
        self.number = {m: i for i, m in enumerate(follow)}
        self.first = {kind: 1 + i * stages for i, kind in enumerate(PARTS)}
        """Where the seconds of each kind begin."""
        self.nothing = 2 * stages * len(follow)
        self.done = [MISSING] * self.nothing + [START]
        self.lanes: list[Lane] = []
        self.rank: list[int] = []
        self.cost: list[int] = []
        self.pairs: dict[tuple[int, int], int] = {}
        self.turns: list[list[tuple[int, list[int], list[Place]]]] = []

    def add(self, turns: Sequence[Repeat], own: Sequence[int]) -> None:
        """The next rank, which holds these stages."""
        lane, begin = Lane([], [], []), len(self.cost)
        mine = []
        for times, actions, step in turns:
            costs = [self.first[kind] + stage for kind, stage, _, _ in actions]
            places = []
            for again, first, i, m in sorted(self._met(times, actions, step)):
                self._put(lane, actions[i], m, own)
                self.cost.append(self._together(actions, costs, i))
                places.append((again, first))
            mine.append((times, costs, places))
        self.turns.append(mine)
        self.rank += [len(self.lanes)] * (len(self.cost) - begin)
        lane.what.extend(range(begin, len(self.cost)))
        self.lanes.append(lane)

    def _met(self, times: int, actions: Sequence[Action], step: int) -> Iterator[tuple[int, int, int, int]]:
        """Which followed microbatches turns come to: after how many times, in which action (the first of two that are
        overlaps_next), which of the two it is, and the microbatch."""
        followed: dict[int, list[int]] = {}
        for m in self.number:
            followed.setdefault(m % step, []).append(m)
        beside = 0
        for i, (kind, _, first, overlaps_next) in enumerate(actions):
            if kind != "backward_weight":
                for m in followed.get(first % step, ()):
                    if 0 <= (again := (m - first) // step) < times:
                        yield again, i - beside, i, m
            beside = int(overlaps_next)

    def _put(self, lane: Lane, action: Action, microbatch: int, own: Sequence[int]) -> None:
        stage, count = action.stage, len(self.number)
        forward = action.kind == "forward"
        end = (stage if forward else self.stages + stage) * count + self.number[microbatch]
        needed = stage - 1 if forward else stage + 1
        alone = needed in own or not 0 <= needed < self.stages
        lane.need_at.append(self.nothing if alone else end + (needed - stage) * count)
        lane.end_at.append(end)

    def _together(self, actions: Sequence[Action], costs: Sequence[int], i: int) -> int:
        """What an action costs, together with the one that it is overlaps_next to."""
        if actions[i].overlaps_next:
            pair = costs[i], costs[i + 1]
        elif i > 0 and actions[i - 1].overlaps_next:
            pair = costs[i - 1], costs[i]
        else:
            return costs[i]
        return self.pairs.setdefault(pair, 1 + len(PARTS) * self.stages + len(self.pairs))
