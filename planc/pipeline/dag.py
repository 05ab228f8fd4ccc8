"""The lists of a schedule as one list in which every action comes after what it waits for.

The order does not depend on the seconds: it is found once for a shape and then run with each stage's
times in one pass. `engine` runs lists once, and says who waits for whom where they cannot end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import chain, repeat

from planc.diag.fast_dataclass import dataclass
from planc.pipeline.actions import Action, Kind, Repeat
from planc.pipeline.schedule import Schedule, Shape, stages_at
from planc.pipeline.stage_times import StageTimes

START, MISSING = 0, -1
"""What an action needs that needs nothing of another rank, and what has not ended yet; entries count from 1."""
NEVER_S = float("-inf")


@dataclass(frozen=True)
class Steps:
    """One entry for each action, and one more where two start together: what it is, and when.

    `need` is the entry on another rank whose end it waits for (what its own rank did before comes first anyway),
    `what` its place in `kinds`. Lists of numbers: tuples would be many objects to collect.
    """

    need: list[int]
    what: list[int]
    kinds: tuple[tuple[int, int, int], ...]
    """Ranks, the place of an entry's seconds in `seconds_of`, and that of the weights' gradients that its rank does
    right after it, for which nobody waits."""
    pairs: tuple[tuple[int, int], ...]
    """Costs of actions that end together: sums of two others."""
    ranks: int
    told: Callable[[], list[list[int]]]
    """What `end` is: few ask for it."""

    @cached_property
    def end(self) -> list[list[int]]:
        """The entry at whose end a microbatch has left a stage by its forward, [stage][microbatch], and then by its
        backward (the input's gradient); MISSING where there is none."""
        return self.told()

    def run(self, times: StageTimes) -> tuple[list[float], float]:
        """The end of every entry and of the step, in seconds."""
        seconds, send = seconds_of(times, self.pairs), times.send_s
        kinds = [(rank, seconds[cost], seconds[late]) for rank, cost, late in self.kinds]
        clock = [0.0] * self.ranks
        ends = [NEVER_S]
        ended = ends.append
        for need, what in zip(self.need, self.what, strict=True):
            rank, cost, late = kinds[what]
            start = clock[rank]
            ready = ends[need] + send
            if ready > start:
                start = ready
            end = start + cost
            ended(end)
            clock[rank] = end + late
        return ends, max(clock)


def seconds_of(times: StageTimes, pairs: Iterable[tuple[int, int]]) -> list[float]:
    """What `cost` counts: nothing; each stage's forward, backward, input's and weights' part; sums of two of them."""
    backward, weight = times.backward_s, times.weight_s
    inputs = [b - w for b, w in zip(backward, weight, strict=True)]
    known = [0.0, *times.forward_s, *backward, *inputs, *weight]
    for a, b in pairs:
        known.append(known[a] + known[b])
    return known


@lru_cache(maxsize=256)
def turns_of(schedule: Schedule, size: Shape) -> tuple[list[Repeat], ...]:
    """What each rank of a bundled schedule runs, in order."""
    return tuple(schedule.rank_actions(size, rank) for rank in range(size.ranks))


PARTS: tuple[Kind, ...] = ("forward", "backward", "backward_input", "backward_weight")
"""Kinds of action in the order of their seconds, each for all stages, after the first place."""
END = 1
"""Of an action's places."""


@dataclass(frozen=True)
class Lane:
    """A rank's entries in the order of its list: where `done` says that what each needs has ended and where
    its own end is told, and what it is."""

    need_at: list[int]
    end_at: list[int]
    what: list[int]


class Lanes:
    """Each rank's entries in order.

    `done` holds the entry that ended each forward and then each backward, stage by stage and microbatch by
    microbatch, and then what needs nothing, and what nobody waits for. What ends together is told in one place.
    """

    def __init__(self, stages: int, microbatches: int, turns: Iterable[Iterable[Repeat]]) -> None:
        self.stages, self.count = stages, microbatches
        self.nothing = 2 * stages * self.count
        self.nobody = self.nothing + 1
        self.done = [MISSING] * self.nothing + [START, START]
        self.kinds: dict[tuple[int, int, int], int] = {}
        self.pairs: dict[tuple[int, int], int] = {}
        self.lanes: list[Lane] = []
        self.begins: list[list[tuple[int, int]]] = []
        """Of each lane, where its turns begin, and how many entries they have each time."""
        self.told: list[int] = []
        """Where each end is told, if that is not always its own place."""
        for times, actions, step in (t for mine in turns for t in mine):
            for i, action in enumerate(actions):
                if action.overlaps_next:
                    self.told = self.told or list(range(self.nobody + 1))
                    self.told[self._ends(action, times, step)] = self.told[self._ends(actions[i + 1], times, step)]

    def _ends(self, action: Action, times: int, step: int) -> slice:
        first = self._place(action.kind, action.stage)[END] + action.microbatch
        return slice(first, first + times * step, step)

    def _place(self, kind: Kind, stage: int, own: Sequence[int] = ()) -> tuple[int, int, int]:
        """Of microbatch 0: what needs to have ended, where the end is told, and what it costs."""
        cost = 1 + PARTS.index(kind) * self.stages + stage
        if kind == "backward_weight":
            return self.nothing, self.nobody, cost
        forward = kind == "forward"
        end = (stage if forward else self.stages + stage) * self.count
        needed = stage - 1 if forward else stage + 1
        alone = needed in own or not 0 <= needed < self.stages
        return self.nothing if alone else end + (needed - stage) * self.count, end, cost

    def add(self, turns: Iterable[Repeat], own: Sequence[int]) -> None:
        """The next rank, which holds these stages: it waits for none of them, since its list has them in order."""
        lane, rank = Lane([], [], []), len(self.lanes)
        begins: list[tuple[int, int]] = []
        places: dict[tuple[Kind, int], tuple[int, int, int]] = {}
        for times, actions, step in turns:
            needs: list[int] = []
            ends: list[int] = []
            costs: list[int] = []
            lates: list[int] = []
            beside = 0
            for kind, stage, m, overlaps_next in actions:
                place = places.get((kind, stage))
                if place is None:
                    place = places[kind, stage] = self._place(kind, stage, own)
                need, end, cost = place
                if end == self.nobody:
                    if lates and not lates[-1]:
                        lates[-1] = cost
                        continue
                    m = 0
                needs.append(need if need == self.nothing else need + m)
                ends.append(self.nobody if overlaps_next else end + m)
                costs.append(0 if overlaps_next else self._sum(beside, cost))
                lates.append(0)
                beside = cost if overlaps_next else 0
            begins.append((len(lane.what), len(costs)))
            lane.need_at.extend(self._turned(needs, times, step))
            lane.end_at.extend(self._turned(ends, times, step))
            whats = [self.kinds.setdefault((rank, *c), len(self.kinds)) for c in zip(costs, lates, strict=True)]
            lane.what.extend(whats * times)
        if self.told:
            lane.need_at[:] = map(self.told.__getitem__, lane.need_at)
        self.lanes.append(lane)
        self.begins.append(begins)

    def turn_at(self, rank: int, turns: int, times: int) -> int:
        """Which entry of a rank's lane comes after some of its turns and so many times the next ones."""
        begin, length = self.begins[rank][turns]
        return begin + times * length

    def _turned(self, places: Sequence[int], times: int, step: int) -> Iterable[int]:
        """Places of the entries of a turn, each a microbatch further every time."""
        if times == 1:
            return places
        every = [repeat(at, times) if at >= self.nothing else range(at, at + times * step, step) for at in places]
        return chain.from_iterable(zip(*every, strict=True))

    def _sum(self, cost: int, other: int) -> int:
        """What an action that costs so much costs together with another one."""
        return self.pairs.setdefault((cost, other), 1 + len(PARTS) * self.stages + len(self.pairs)) if cost else other

    def steps(self, need: list[int], what: list[int]) -> Steps:
        return Steps(
            need=need,
            what=what,
            kinds=tuple(self.kinds),
            pairs=tuple(self.pairs),
            ranks=len(self.lanes),
            told=self.end,
        )

    def end(self) -> list[list[int]]:
        """`Steps.end`, once all are done."""
        done = list(map(self.done.__getitem__, self.told)) if self.told else self.done
        return [done[at : at + self.count] for at in range(0, self.nothing, self.count)]


def lanes_of(schedule: Schedule, size: Shape) -> Lanes:
    """The lanes of a bundled schedule."""
    turns = turns_of(schedule, size)
    found = Lanes(size.stages, size.microbatches, turns)
    for rank, mine in enumerate(turns):
        own = stages_at(schedule.placement, size.ranks, size.chunks, rank) if schedule.copies == 1 else ()
        found.add(mine, own)
    return found


def in_order(lanes: Iterable[Lane], done: list[int], need: list[int], what: list[int]) -> bool:
    """Add what each entry needs and what it is, every entry after the one it needs; False where they wait for
    themselves.

    Every lane is followed as far as it goes, down the ranks as forwards go and then up again as backwards do, until all
    have come to their end.
    """
    going, before = [_follow(lane, done, need, what) for lane in lanes][::-1], -1
    while going:
        if len(need) == before:
            return False
        before = len(need)
        going = [following for following in reversed(going) if next(following, True) is None]
    return True


def _follow(lane: Lane, done: list[int], need: list[int], what: list[int]) -> Iterator[None]:
    """Follow a rank's list, and come back whenever an entry has to wait."""
    add_need, add_what, number = need.append, what.append, len(need) + 1
    for need_at, end_at, kind in zip(lane.need_at, lane.end_at, lane.what, strict=True):
        while (ready := done[need_at]) == MISSING:
            yield
            number = len(need) + 1
        add_need(ready)
        add_what(kind)
        done[end_at] = number
        number += 1
