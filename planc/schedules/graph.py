"""The lists of a schedule as one list in which every action comes after what it waits for.

The order does not depend on the seconds: it is found once for a shape and then run with each stage's
times in one pass. `engine` runs lists once, and says who waits for whom where they cannot end.
"""

from __future__ import annotations

from functools import lru_cache
from operator import itemgetter

from planc.diag.light import dataclass
from planc.schedules.actions import Action, Kind, Turns, listed
from planc.schedules.engine import Order, StageTimes, simulate
from planc.schedules.schedule import Schedule, Shape

START, MISSING = -1, -2
"""What an action needs that needs nothing, and what has not ended yet."""


@dataclass(frozen=True)
class Steps:
    """One entry for each action, and one more where two start together: who runs it, when, for how long.

    `need` is the entry on another rank whose end it waits for (what its own rank did before comes first
    anyway), `cost` the place of its seconds in `seconds`, `late` that of the weights' gradients that its rank
    does right after it, for which nobody waits. Lists of numbers: tuples would be many objects to collect.
    """

    rank: list[int]
    need: list[int]
    cost: list[int]
    late: list[int]
    pairs: tuple[tuple[int, int], ...]
    """Costs of actions that end together: sums of two others."""
    ranks: int
    stages: int
    end: dict[str, list[list[int]]]
    """The entry at whose end a microbatch has left a stage, [stage][microbatch]: `forward` or `backward` (the
    input's gradient); MISSING where there is none."""

    def seconds(self, times: StageTimes) -> list[float]:
        """What the entries' `cost` counts: nothing; forwards, backwards, inputs', weights'; pairs."""
        backward, weight = times.backward_s, times.weight_s
        inputs = [b - w for b, w in zip(backward, weight, strict=True)]
        known = [0.0, *times.forward_s, *backward, *inputs, *weight]
        for a, b in self.pairs:
            known.append(known[a] + known[b])
        return known

    def run(self, times: StageTimes) -> tuple[list[float], float]:
        """The end of every entry and of the step, in seconds."""
        seconds, send = self.seconds(times), times.send_s
        clock = [0.0] * self.ranks
        ends: list[float] = []
        for rank, need, cost, late in zip(self.rank, self.need, self.cost, self.late, strict=True):
            start = clock[rank]
            if need >= 0:
                ready = ends[need] + send
                if ready > start:
                    start = ready
            end = start + seconds[cost]
            ends.append(end)
            clock[rank] = end + seconds[late]
        return ends, max(clock)


@lru_cache(maxsize=64)
def steps_of(schedule: Schedule, size: Shape) -> Steps:
    """The steps of a bundled schedule."""
    return steps([listed(turns) for turns in turns_of(schedule, size)], size.stages)


@lru_cache(maxsize=256)
def turns_of(schedule: Schedule, size: Shape) -> tuple[list[Turns], ...]:
    """What each rank of a bundled schedule runs, in order."""
    return tuple(schedule.turns(size, rank) for rank in range(size.ranks))


def steps(order: Order, stages: int) -> Steps:
    """The steps of these lists. Raises DeadlockError when they wait for themselves."""
    found = _Found(order, stages)
    if not found.complete():
        once = (1.0,) * stages
        simulate(order, StageTimes(once, once, (0.5,) * stages))  # raises: it knows who waits for whom
        raise AssertionError("lists that end were not followed to their end")
    return Steps(
        rank=found.rank,
        need=found.need,
        cost=found.cost,
        late=found.late,
        pairs=tuple(found.pairs),
        ranks=len(order),
        stages=stages,
        end=found.end(),
    )


PARTS: tuple[Kind, ...] = ("forward", "backward", "backward_input", "backward_weight")
"""Kinds of action in the order of their seconds, each for all stages, after the first place."""
MICROBATCH = itemgetter(Action._fields.index("microbatch"))
ENDS = ("forward", "backward")
"""What a microbatch leaves a stage by."""


class _Found:
    """The entries so far, and where each rank's list has come to.

    `done` holds the entry that ended each of `ENDS`, stage by stage and microbatch by microbatch, and then,
    for what needs nothing, START for every microbatch.
    """

    def __init__(self, order: Order, stages: int) -> None:
        self.order, self.stages = order, stages
        self.count = 1 + max((max(map(MICROBATCH, actions)) for actions in order if actions), default=0)
        self.done = [MISSING] * (len(ENDS) * stages * self.count) + [START] * (2 * self.count)
        self.places = {kind: [self._place(kind, stage) for stage in range(stages)] for kind in PARTS}
        self.rank: list[int] = []
        self.need: list[int] = []
        self.cost: list[int] = []
        self.late: list[int] = []
        self.pairs: dict[tuple[int, int], int] = {}
        self._next = [0] * len(order)
        self._last = [0] * len(order)
        """The last entry of each rank."""

    def _place(self, kind: Kind, stage: int) -> tuple[int, int, int]:
        """Where `done` says of microbatch 0 what an action needs, where it says what ends with it (beyond all
        that is asked for, where nobody waits), and what it costs."""
        forward, backward = ((part * self.stages + stage) * self.count for part in range(len(ENDS)))
        nothing, nobody = ((len(ENDS) * self.stages + i) * self.count for i in range(2))
        cost = 1 + PARTS.index(kind) * self.stages + stage
        if kind == "forward":
            return forward - self.count if stage else nothing, forward, cost
        if kind == "backward_weight":
            return backward, nobody, cost
        return forward if stage == self.stages - 1 else backward + self.count, backward, cost

    def complete(self) -> bool:
        """Follow every list as far as it goes; whether all came to their end."""
        going = [r for r, actions in enumerate(self.order) if actions]
        while going:
            if not sum([self._advance(rank) for rank in going]):
                return False
            going = [r for r in going if self._next[r] < len(self.order[r])]
        return True

    def _advance(self, rank: int) -> int:
        """Follow a rank's list until an action has to wait; how many were followed."""
        actions, begin = self.order[rank], self._next[rank]
        owner, done, places, late = self.rank, self.done, self.places, self.late
        add_rank, add_need, add_cost, add_late = owner.append, self.need.append, self.cost.append, late.append
        i, n, number, last = begin, len(actions), len(owner), self._last[rank]
        while i < n:
            kind, stage, m, joined = actions[i]
            need_at, end_at, cost = places[kind][stage]
            need = done[need_at + m]
            if need == MISSING:
                break
            i += 1
            if joined:
                other = actions[i]
                second_at, also_at, second_cost = places[other.kind][other.stage]
                second = done[second_at + other.microbatch]
                if second == MISSING:
                    i -= 1
                    break
                add_need(need if need >= 0 and owner[need] != rank else START)
                add_rank(rank)
                add_cost(0)
                add_late(0)
                number, i = number + 1, i + 1
                done[end_at + m] = number
                need, end_at, m, cost = second, also_at, other.microbatch, self._sum(cost, second_cost)
            elif kind == "backward_weight":
                late[last] = self._sum(late[last], cost)
                continue
            add_need(need if need >= 0 and owner[need] != rank else START)
            add_rank(rank)
            add_cost(cost)
            add_late(0)
            done[end_at + m] = last = number
            number += 1
        self._next[rank], self._last[rank] = i, last
        return i - begin

    def _sum(self, cost: int, other: int) -> int:
        """What an action that costs so much costs together with another one."""
        return self.pairs.setdefault((cost, other), 1 + len(PARTS) * self.stages + len(self.pairs)) if cost else other

    def end(self) -> dict[str, list[list[int]]]:
        """`Steps.end`."""
        rows = [self.done[at : at + self.count] for at in range(0, len(ENDS) * self.stages * self.count, self.count)]
        return {kind: rows[i * self.stages : (i + 1) * self.stages] for i, kind in enumerate(ENDS)}
