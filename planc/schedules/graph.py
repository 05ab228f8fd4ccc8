"""The lists of a schedule as one list in which every action comes after what it waits for.

The order does not depend on the seconds: it is found once for a shape and then run with each stage's
times in one pass. `engine` runs lists once, and says who waits for whom where they cannot end.
"""

from __future__ import annotations

from functools import cached_property, lru_cache

from planc.diag.light import dataclass
from planc.schedules.actions import Action, Kind
from planc.schedules.engine import Order, StageTimes, simulate
from planc.schedules.schedule import Schedule, Shape

START, MISSING = -1, -2
"""What an action needs that needs nothing, and what has not ended yet."""


@dataclass(frozen=True)
class Steps:
    """One entry for each action, and one more where two start together: who runs it, when, for how long.

    `need` is the entry whose end it waits for, `sent` 1 if that lies on another rank, `cost` the place of
    its seconds in `seconds`.
    """

    rank: tuple[int, ...]
    need: tuple[int, ...]
    sent: tuple[int, ...]
    cost: tuple[int, ...]
    pairs: tuple[tuple[int, int], ...]
    """Costs of actions that end together: sums of two others."""
    ranks: int
    stages: int
    end: dict[str, list[list[int]]]
    """The entry at whose end a microbatch has left a stage, [stage][microbatch]: `forward`, `backward` (the
    input's gradient) or `weight`; MISSING where there is none."""

    @cached_property
    def entries(self) -> tuple[tuple[int, int, int, int], ...]:
        return tuple(zip(self.rank, self.need, self.sent, self.cost, strict=True))

    def seconds(self, times: StageTimes) -> list[float]:
        """What the entries' `cost` counts: nothing; forwards, backwards, inputs', weights'; pairs."""
        backward, weight = times.backward_s, times.weight_s
        inputs = [b - w for b, w in zip(backward, weight, strict=True)]
        single = [0.0, *times.forward_s, *backward, *inputs, *weight]
        return single + [single[a] + single[b] for a, b in self.pairs]

    def run(self, times: StageTimes) -> list[float]:
        """The end of every entry, in seconds."""
        seconds, send = self.seconds(times), times.send_s
        clock = [0.0] * self.ranks
        ends: list[float] = []
        for rank, need, sent, cost in self.entries:
            start = clock[rank]
            if need >= 0:
                ready = ends[need] + send if sent else ends[need]
                if ready > start:
                    start = ready
            clock[rank] = end = start + seconds[cost]
            ends.append(end)
        return ends


@lru_cache(maxsize=64)
def steps_of(schedule: Schedule, size: Shape) -> Steps:
    """The steps of a bundled schedule."""
    return steps(lists(schedule, size), size.stages)


@lru_cache(maxsize=32)
def lists(schedule: Schedule, size: Shape) -> tuple[list[Action], ...]:
    """What each rank of a bundled schedule runs, in order."""
    return tuple(schedule.order(size, rank) for rank in range(size.ranks))


def steps(order: Order, stages: int) -> Steps:
    """The steps of these lists. Raises DeadlockError when they wait for themselves."""
    found = _Found(order, stages)
    if not found.complete():
        once = (1.0,) * stages
        simulate(order, StageTimes(once, once, (0.5,) * stages))  # raises: it knows who waits for whom
        raise AssertionError("lists that end were not followed to their end")
    return Steps(
        rank=tuple(found.rank),
        need=tuple(found.need),
        sent=tuple(found.sent),
        cost=tuple(found.cost),
        pairs=tuple(found.pairs),
        ranks=len(order),
        stages=stages,
        end={"forward": found.forward, "backward": found.backward, "weight": found.weight},
    )


SLOTS: dict[Kind, int] = {"forward": 0, "backward": 1, "backward_input": 2, "backward_weight": 3}
"""Where an action's seconds are, in stages after the first place."""


class _Found:
    """The entries so far, and where each rank's list has come to."""

    def __init__(self, order: Order, stages: int) -> None:
        count = 1 + max((a.microbatch for actions in order for a in actions), default=0)
        self.order, self.stages = order, stages
        self.forward = [[MISSING] * count for _ in range(stages)]
        self.backward = [[MISSING] * count for _ in range(stages)]
        self.weight = [[MISSING] * count for _ in range(stages)]
        self.rank: list[int] = []
        self.need: list[int] = []
        self.sent: list[int] = []
        self.cost: list[int] = []
        self.pairs: dict[tuple[int, int], int] = {}
        self._next = [0] * len(order)

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
        i, n = begin, len(actions)
        while i < n:
            action = actions[i]
            need = self._need(action)
            if need == MISSING:
                break
            if action.joined:
                other = actions[i + 1]
                second = self._need(other)
                if second == MISSING:
                    break
                both = self._slot(action), self._slot(other)
                place = self.pairs.setdefault(both, 1 + 4 * self.stages + len(self.pairs))
                self._add(rank, need, 0)
                self._end(action, self._add(rank, second, place))
                self._end(other, len(self.rank) - 1)
                i += 2
            else:
                self._end(action, self._add(rank, need, self._slot(action)))
                i += 1
        self._next[rank] = i
        return i - begin

    def _slot(self, action: Action) -> int:
        return 1 + SLOTS[action.kind] * self.stages + action.stage

    def _add(self, rank: int, need: int, cost: int) -> int:
        """A new entry; its number."""
        self.sent.append(int(need != START and self.rank[need] != rank))
        self.rank.append(rank)
        self.need.append(need)
        self.cost.append(cost)
        return len(self.rank) - 1

    def _end(self, action: Action, entry: int) -> None:
        """What is done when an action is."""
        kind, stage, m, _ = action
        if kind == "forward":
            self.forward[stage][m] = entry
            return
        if kind != "backward_weight":
            self.backward[stage][m] = entry
        if kind != "backward_input":
            self.weight[stage][m] = entry

    def _need(self, action: Action) -> int:
        """The entry that an action waits for; what its own rank did before comes first anyway."""
        kind, stage, m, _ = action
        if kind == "forward":
            return self.forward[stage - 1][m] if stage else START
        if kind == "backward_weight":
            return self.backward[stage][m]
        if stage == self.stages - 1 or self.forward[stage][m] == MISSING:
            return self.forward[stage][m]
        return self.backward[stage + 1][m]
