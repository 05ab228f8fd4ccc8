"""Topological order of a schedule's actions, which does not depend on their durations.

An action depends on the previous action of its rank, and on one action of another rank: a forward on the forward of the
previous stage, a backward on the backward of the next stage. `planc.pipeline.simulate` computes all end times in one
pass over the order.
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
"""Kinds of action in the order of their seconds in `costs_s`."""

NO_WAIT, NOT_ENDED = 0, -1
"""Values in a table of ends: does not wait for another rank; has not ended yet. Entries are numbered from 1."""


@dataclass(frozen=True)
class ExecutionOrder:
    """All actions of a step in topological order, as a list of entries.

    Each action is one entry, with two exceptions. A wgrad that follows an action without overlap is part of that
    action's entry, because no other rank waits for it. Two overlapped actions have two entries: the first only waits,
    the second waits and takes the time of both.
    """

    waits: list[int]
    """For each entry, the negative distance (in entries) to the one on another rank that it waits for; `NO_WAIT` if
    there is none. The numbers are relative, so that a period of the order can be repeated unchanged."""
    kinds: list[int]
    """For each entry its index in `entry_kinds`."""
    entry_kinds: tuple[tuple[int, int, int], ...]
    """Rank, cost, and the cost of the following wgrad. Costs are indices into `costs_s`."""
    pairs: tuple[tuple[int, int], ...]
    """Costs of overlapped actions, each as the pair of costs that are added."""
    ranks: int

    def entry_kinds_s(self, times: StageTimes) -> list[tuple[int, float, float]]:
        """Return (rank, seconds, seconds of the following wgrad) of each kind of entry, for these stage `times`."""
        seconds = costs_s(times, self.pairs)
        return [(rank, seconds[cost], seconds[weights]) for rank, cost, weights in self.entry_kinds]


def costs_s(times: StageTimes, pairs: Iterable[tuple[int, int]]) -> list[float]:
    """Return a table of seconds, whose indices are called costs: 0, then the forward, backward, dgrad and wgrad of each
    stage, then the sum of each of the `pairs` of costs.

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
    """The actions of one rank in order, as entries of an `ExecutionOrder`. A table has the end of every action:
    `wait_at[i]` is the index in it of the end that entry i waits for, and `end_at[i]` the index of entry i's end."""

    wait_at: list[int]
    end_at: list[int]
    kinds: list[int]
    repeats: list[tuple[int, int]]
    """For each `Repeat` of the rank's list the first entry, and the number of entries of one repetition."""

    def between(self, begin: int, end: int) -> RankEntries:
        """Return the entries from index `begin` to `end` (exclusive)."""
        cut = slice(begin, end)
        return RankEntries(self.wait_at[cut], self.end_at[cut], self.kinds[cut], [])

    def after(self, repeat: int, times: int) -> int:
        """Return the index of the first entry of repetition `times` (from 0) of the rank's `Repeat` with the index
        `repeat`."""
        begin, length = self.repeats[repeat]
        return begin + times * length


class Entries:
    """The entries of all ranks, and a table with the end of every action.

    The table has the ends of forwards, then those of backwards (or dgrads), by stage and microbatch. Two cells follow:
    an end for actions that wait for nothing, and one for ends that nothing waits for.
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
        """Index in `costs_s` of each kind of action on stage 0; other stages follow."""
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
        """Return the execution order, from the `waits` and `kinds` that `in_order` computes."""
        return ExecutionOrder(waits, kinds, tuple(self._kinds), tuple(self.pairs), len(self.ranks))

    def place(self, kind: Kind, stage: int) -> int:
        """Return the index in the table of ends of an action of this `kind` on `stage`, for microbatch 0."""
        if kind == "backward_weight":
            return self.unread
        return (stage if kind == "forward" else self.stages + stage) * self.microbatches

    def pair_cost(self, cost: int, other: int) -> int:
        """Return the index in the table `costs_s` of two overlapped actions, which have the indices `cost` and
        `other`."""
        return self.pairs.setdefault((cost, other), 1 + len(COST_KINDS) * self.stages + len(self.pairs))

    def _shared_ends(self) -> list[int]:
        """Return for each cell of the table of ends the cell to use instead: overlapped actions share the second one's.
        Return [] if no actions overlap."""
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
        """Return the entries of a rank. They wait for no action on the stages `own`, which only this rank holds."""
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
                    weights[-1] = cost  # this wgrad becomes part of the entry before it
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
        """Return three indices for microbatch 0: of the end to wait for, of the action's end, and of its cost."""
        end, cost = self.place(kind, stage), self.first_cost[kind] + stage
        needed = stage - 1 if kind == "forward" else stage + 1
        # Actions on a rank's own stages need no wait: its list runs in order.
        if kind == "backward_weight" or needed in own or not 0 <= needed < self.stages:
            return self.always, end, cost
        return end + (needed - stage) * self.microbatches, end, cost

    def _repeated(self, places: Sequence[int], times: int, step: int) -> Iterable[int]:
        if times == 1:
            return places
        columns = [repeat(at, times) if at >= self.always else range(at, at + times * step, step) for at in places]
        return chain.from_iterable(zip(*columns, strict=True))


def in_order(ranks: Iterable[RankEntries], ended: list[int], waits: list[int], kinds: list[int]) -> bool:
    """Append the entries of all ranks to `waits` and `kinds` in topological order. Return False if the ranks deadlock.

    Each rank in turn is advanced as far as possible. Passes over the ranks alternate between first to last, as forwards
    go, and last to first, as backwards go.

    Args:
        ranks: the entries of each rank.
        ended: for each action, the number of the entry that ended it; NOT_ENDED if none has.
        waits: for each entry, the distance back to the entry that it waits for, as a negative number; NO_WAIT if none.
        kinds: for each entry, its kind.
    """
    following, before = [_follow(mine, ended, waits, kinds) for mine in ranks][::-1], -1
    while following:
        if len(waits) == before:
            return False
        before = len(waits)
        following = [rank for rank in reversed(following) if next(rank, True) is None]
    return True


def _follow(mine: RankEntries, ended: list[int], waits: list[int], kinds: list[int]) -> Iterator[None]:
    """Append the entries of a rank; yield whenever it must wait for another rank."""
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
    """Return the topological order of all actions. `lists` has the actions of each rank, which must not deadlock."""
    entries, waits, kinds = Entries(lists), list[int](), list[int]()
    complete = in_order(entries.ranks, entries.ended, waits, kinds)
    assert complete, find_deadlock(lists)
    return entries.order(waits, kinds)


@lru_cache(maxsize=256)
def rank_lists(schedule: Schedule, shape: ScheduleShape) -> tuple[list[Repeat], ...]:
    """Return the action list of each rank of a named `schedule`, for `shape` (ranks, chunks, microbatches)."""
    return tuple(schedule.rank_actions(shape, rank) for rank in range(shape.ranks))
