"""Topological order of a schedule's actions, built once per shape and run with any stage times.

An action depends on the action before it on its rank, and on one action of another rank: a forward on the forward of
the stage before, a backward on the backward of the stage after. The order does not depend on seconds, so that
`planc.pipeline.simulate` computes every end in one pass over it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain, pairwise, repeat

from planc.diag.fast_dataclass import dataclass
from planc.pipeline.actions import Action, Kind, Repeat
from planc.pipeline.deadlock import find_deadlock
from planc.pipeline.schedule import Schedule, ScheduleShape
from planc.pipeline.stage_times import StageTimes

RankList = Sequence[Repeat]
"""The actions of one rank, in order."""

COST_KINDS: tuple[Kind, ...] = ("forward", "backward", "backward_input", "backward_weight")
"""Kinds of action in the order in which `costs_s` has their seconds."""

NO_WAIT, NOT_ENDED = 0, -1
"""In a table of ends: depends on no other rank; has not ended yet. Entries are numbered from 1."""


@dataclass(frozen=True)
class ExecutionOrder:
    """All actions of a step, each after those it depends on.

    There is one entry for each action. A gradient of weights has none where it follows an action that nothing
    overlaps: nobody waits for it, and it is part of that action's entry. Two overlapped actions have two
    entries: the first one only waits, the second one waits and takes the seconds of both.
    """

    waits: list[int]
    """For each entry, minus the number of entries since the one on another rank that it waits for; `NO_WAIT` if it
    waits for none. The numbers are relative, so that a period of the order can be repeated as it stands."""
    kinds: list[int]
    """For each entry its place in `entry_kinds`."""
    entry_kinds: tuple[tuple[int, int, int], ...]
    """Rank, cost, and the cost of the gradient of weights after it. Costs are places in `costs_s`."""
    pairs: tuple[tuple[int, int], ...]
    """Costs of overlapped actions, as the two costs that they are the sums of."""
    ranks: int

    def entry_kinds_s(self, times: StageTimes) -> list[tuple[int, float, float]]:
        """`entry_kinds` with seconds, from the `times` of stages, instead of places."""
        seconds = costs_s(times, self.pairs)
        return [(rank, seconds[cost], seconds[weights]) for rank, cost, weights in self.entry_kinds]


def costs_s(times: StageTimes, pairs: Iterable[tuple[int, int]]) -> list[float]:
    """Seconds by cost: 0; then each stage's forward, backward, inputs' and weights' part; then sums of two costs
    (`pairs`).

    `times` has the seconds of one microbatch on each virtual stage.
    """
    backward, weight = times.backward_s, times.weight_s
    inputs = [b - w for b, w in zip(backward, weight, strict=True)]
    seconds = [0.0, *times.forward_s, *backward, *inputs, *weight]
    for a, b in pairs:
        seconds.append(seconds[a] + seconds[b])
    return seconds


@dataclass(frozen=True)
class RankEntries:
    """The entries of one rank, in order: where in the table of ends each looks for the action it waits for and
    writes its own end, and its kind."""

    wait_at: list[int]
    end_at: list[int]
    kinds: list[int]
    repeats: list[tuple[int, int]]
    """For each `Repeat` of the rank's list the first entry, and the entries of one repetition."""

    def between(self, begin: int, end: int) -> RankEntries:
        """Entries `begin` to `end` (exclusive)."""
        cut = slice(begin, end)
        return RankEntries(self.wait_at[cut], self.end_at[cut], self.kinds[cut], [])

    def after(self, repeat: int, times: int) -> int:
        """The number of entries before repetition `times` of the rank's `Repeat` with index `repeat`."""
        begin, length = self.repeats[repeat]
        return begin + times * length


class Entries:
    """The entries of all ranks, and the table of ends.

    The table has the entry that ends each forward, then each backward (gradient of the input), by stage and microbatch;
    then a place that has ended from the start, and one that nobody reads.
    """

    def __init__(self, lists: Sequence[RankList]) -> None:
        self.lists = lists
        every = [(a, times, step) for mine in lists for times, actions, step in mine for a in actions]
        self.stages = 1 + max((a.stage for a, _, _ in every), default=0)
        self.microbatches = 1 + max((a.microbatch + max(0, (times - 1) * step) for a, times, step in every), default=0)
        self.always = 2 * self.stages * self.microbatches
        self.unread = self.always + 1
        self.ended = [NOT_ENDED] * self.always + [NO_WAIT, NO_WAIT]
        self.first_cost = {kind: 1 + i * self.stages for i, kind in enumerate(COST_KINDS)}
        """Where `costs_s` has the seconds of each kind of action on stage 0; other stages follow."""
        self.pairs: dict[tuple[int, int], int] = {}
        self._kinds: dict[tuple[int, int, int], int] = {}
        self._shared = self._shared_ends()
        held = [{a.stage for r in mine for a in r.actions} for mine in lists]
        holders = Counter(chain.from_iterable(held))
        self.ranks = [
            self._rank(rank, mine, {s for s in stages if holders[s] == 1})
            for rank, (mine, stages) in enumerate(zip(lists, held, strict=True))
        ]

    def order(self, waits: list[int], kinds: list[int]) -> ExecutionOrder:
        """The order in which these entries were found: `waits` and `kinds` as `in_order` appends them."""
        return ExecutionOrder(waits, kinds, tuple(self._kinds), tuple(self.pairs), len(self.ranks))

    def place(self, kind: Kind, stage: int) -> int:
        """Index in the table of the end of microbatch 0's action of this `kind` on a `stage`."""
        if kind == "backward_weight":
            return self.unread
        return (stage if kind == "forward" else self.stages + stage) * self.microbatches

    def pair_cost(self, cost: int, other: int) -> int:
        """Index in `costs_s` of the seconds of two overlapped actions, whose own indices are `cost` and `other`."""
        return self.pairs.setdefault((cost, other), 1 + len(COST_KINDS) * self.stages + len(self.pairs))

    def _shared_ends(self) -> list[int]:
        """For each place of the table the place that its end is written to: that of the second action of an overlapped
        pair for both of them. Empty without pairs."""
        shared: list[int] = []
        for times, actions, step in chain.from_iterable(self.lists):
            for first, second in pairwise(actions):
                if first.overlaps_next and "backward_weight" not in (first.kind, second.kind):
                    shared = shared or list(range(self.unread + 1))
                    shared[self._slice_of_ends(first, times, step)] = shared[self._slice_of_ends(second, times, step)]
        return shared

    def _slice_of_ends(self, action: Action, times: int, step: int) -> slice:
        first = self.place(action.kind, action.stage) + action.microbatch
        return slice(first, first + times * step, step)

    def _rank(self, rank: int, repeats: RankList, own: Collection[int]) -> RankEntries:
        """A rank's entries. It waits for none of its `own` stages, which no other rank holds: its list is in order."""
        made = RankEntries([], [], [], [])
        places: dict[tuple[Kind, int], tuple[int, int, int]] = {}
        for times, actions, step in repeats:
            wait_at: list[int] = []
            end_at: list[int] = []
            costs: list[int] = []
            weights: list[int] = []
            previous: Action | None = None
            for action in actions:
                kind, stage, m, overlaps_next = action
                place = places.get((kind, stage))
                if place is None:
                    place = places[kind, stage] = self._indices(kind, stage, own)
                wait, end, cost = place
                overlapped = previous if previous is not None and previous.overlaps_next else None
                previous = action
                if end == self.unread and weights and not (weights[-1] or overlaps_next or overlapped):
                    weights[-1] = cost
                    continue
                wait_at.append(wait if wait == self.always else wait + m)
                end_at.append(end if end == self.unread else end + m)
                if overlapped is not None:
                    other = places[overlapped.kind, overlapped.stage]
                    cost = self.pair_cost(other[2], cost)
                    if end == self.unread != other[1]:
                        end_at[-1] = other[1] + overlapped.microbatch
                if overlaps_next:
                    end_at[-1] = self.unread
                costs.append(0 if overlaps_next else cost)
                weights.append(0)
            made.repeats.append((len(made.kinds), len(costs)))
            made.wait_at.extend(self._repeated(wait_at, times, step))
            made.end_at.extend(self._repeated(end_at, times, step))
            kinds = [self._kinds.setdefault((rank, *k), len(self._kinds)) for k in zip(costs, weights, strict=True)]
            made.kinds.extend(kinds * times)
        if self._shared:
            made.wait_at[:] = map(self._shared.__getitem__, made.wait_at)
        return made

    def _indices(self, kind: Kind, stage: int, own: Collection[int]) -> tuple[int, int, int]:
        """For microbatch 0: where to look for the action it waits for, where to write its end, and its cost."""
        end, cost = self.place(kind, stage), self.first_cost[kind] + stage
        needed = stage - 1 if kind == "forward" else stage + 1
        if kind == "backward_weight" or needed in own or not 0 <= needed < self.stages:
            return self.always, end, cost
        return end + (needed - stage) * self.microbatches, end, cost

    def _repeated(self, places: Sequence[int], times: int, step: int) -> Iterable[int]:
        """Places of the entries of a `Repeat`, made column by column."""
        if times == 1:
            return places
        columns = [repeat(at, times) if at >= self.always else range(at, at + times * step, step) for at in places]
        return chain.from_iterable(zip(*columns, strict=True))


def in_order(ranks: Iterable[RankEntries], ended: list[int], waits: list[int], kinds: list[int]) -> bool:
    """Append these entries to `waits` and `kinds`, each after the one it waits for; False if they deadlock.

    Every rank is followed as far as it goes: down the ranks in the order of the forwards, then up again in that of the
    backwards, until all have come to their end.

    Args:
        ranks: the entries of each rank, in its order.
        ended: table of ends; the number of the entry that ended each action so far.
        waits: for each entry in order, minus the number of entries since the one it waits for.
        kinds: for each entry in order, its kind.
    """
    following, before = [_follow(mine, ended, waits, kinds) for mine in ranks][::-1], -1
    while following:
        if len(waits) == before:
            return False
        before = len(waits)
        following = [rank for rank in reversed(following) if next(rank, True) is None]
    return True


def _follow(mine: RankEntries, ended: list[int], waits: list[int], kinds: list[int]) -> Iterator[None]:
    """Append a rank's entries; yields whenever the next one has to wait."""
    add_wait, add_kind, number = waits.append, kinds.append, len(waits) + 1
    for wait_at, end_at, kind in zip(mine.wait_at, mine.end_at, mine.kinds, strict=True):
        while (end := ended[wait_at]) == NOT_ENDED:
            yield
            number = len(waits) + 1
        add_wait(end and end - number)
        add_kind(kind)
        ended[end_at] = number
        number += 1


def execution_order(lists: Sequence[RankList]) -> ExecutionOrder:
    """The topological order of the actions of these `lists`, one for each rank, which must not deadlock."""
    entries, waits, kinds = Entries(lists), list[int](), list[int]()
    complete = in_order(entries.ranks, entries.ended, waits, kinds)
    assert complete, find_deadlock(lists)
    return entries.order(waits, kinds)


@lru_cache(maxsize=256)
def rank_lists(schedule: Schedule, shape: ScheduleShape) -> tuple[list[Repeat], ...]:
    """The action list of each rank of a bundled `schedule`, for the numbers in `shape`."""
    return tuple(schedule.rank_actions(shape, rank) for rank in range(shape.ranks))
