"""The lists of a schedule as one list in which every action comes after what it waits for.

The order does not depend on the seconds: it is found once for a shape and then run with each stage's
times in one pass. `engine` is what finds it, and what is run where lists are run once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache

from planc.diag.light import dataclass
from planc.schedules.actions import Action
from planc.schedules.engine import Order, StageTimes, simulate
from planc.schedules.schedule import Schedule, Shape

START = -1
"""What an action needs that needs nothing."""

Key = tuple[str, int, int]
"""What has ended: `forward`, `backward` (the input's gradient) or `weight`, of a stage and microbatch."""


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
    end: dict[Key, int]
    """The entry at whose end a microbatch has left a stage."""

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
    return steps(tuple(schedule.order(size, rank) for rank in range(size.ranks)), size.stages)


def steps(order: Order, stages: int) -> Steps:
    """The steps of these lists. Raises DeadlockError when they wait for themselves."""
    once = (1.0,) * stages
    found = _Found(stages)
    actions = iter(simulate(order, StageTimes(once, once, (0.5,) * stages)).sequence)
    for rank, action in actions:
        if action.joined:
            found.together(rank, action, next(actions)[1])
        else:
            found.add(rank, action, found.slot(action), (action,))
    return Steps(
        rank=tuple(found.rank),
        need=tuple(found.need),
        sent=tuple(found.sent),
        cost=tuple(found.cost),
        pairs=tuple(found.pairs),
        ranks=len(order),
        stages=stages,
        end=found.end,
    )


class _Found:
    """The entries so far."""

    def __init__(self, stages: int) -> None:
        self.stages = stages
        self.rank: list[int] = []
        self.need: list[int] = []
        self.sent: list[int] = []
        self.cost: list[int] = []
        self.pairs: dict[tuple[int, int], int] = {}
        self.end: dict[Key, int] = {}

    def slot(self, action: Action) -> int:
        """Where an action's seconds are."""
        kinds = ("forward", "backward", "backward_input", "backward_weight")
        return 1 + kinds.index(action.kind) * self.stages + action.stage

    def together(self, rank: int, first: Action, second: Action) -> None:
        """Two actions that start when both can, and end at once."""
        self.add(rank, first, 0, ())
        both = self.slot(first), self.slot(second)
        place = self.pairs.setdefault(both, 1 + 4 * self.stages + len(self.pairs))
        self.add(rank, second, place, (first, second))

    def add(self, rank: int, action: Action, cost: int, done: Sequence[Action]) -> None:
        need = self._need(action)
        self.sent.append(int(need != START and self.rank[need] != rank))
        self.rank.append(rank)
        self.need.append(need)
        self.cost.append(cost)
        for one in done:
            for kind in _ended(one):
                self.end[kind, one.stage, one.microbatch] = len(self.rank) - 1

    def _need(self, action: Action) -> int:
        """The entry that an action waits for; what its own rank did before comes first anyway."""
        kind, stage, m, _ = action
        if kind == "forward":
            return self.end["forward", stage - 1, m] if stage else START
        if kind == "backward_weight":
            return self.end["backward", stage, m]
        if stage == self.stages - 1:
            return self.end["forward", stage, m]
        return self.end["backward", stage + 1, m]


def _ended(action: Action) -> tuple[str, ...]:
    """What is done when an action is."""
    if action.kind == "backward":
        return "backward", "weight"
    return ({"forward": "forward", "backward_input": "backward", "backward_weight": "weight"}[action.kind],)
