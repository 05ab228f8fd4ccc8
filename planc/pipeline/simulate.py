"""Running the lists of a schedule: when everything happens, or who waits for whom in a circle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from planc.pipeline.actions import Action
from planc.pipeline.stage_times import StageTimes

Order = Sequence[Sequence[Action]]


class Ran(NamedTuple):
    """An action with its rank, start and end in seconds."""

    action: Action
    rank: int
    start_s: float
    end_s: float


class Wait(NamedTuple):
    """A rank that cannot go on: its next action, what it waits for and the rank that owes it."""

    rank: int
    action: Action
    needs: Action
    owner: int

    def text(self) -> str:
        where = "itself" if self.owner == self.rank else f"rank {self.owner}"
        return f"rank {self.rank} waits at {self.action.text} for {self.needs.text} of {where}"


class DeadlockError(Exception):
    """No rank can go on. `circle` are the ranks that wait for each other. Never of a bundled schedule."""

    def __init__(self, circle: tuple[Wait, ...]) -> None:
        super().__init__("; ".join(w.text() for w in circle))
        self.circle = circle


Ends = list[list[float | None]]
"""When a microbatch leaves a stage: [stage][microbatch] in seconds, None while it has not."""


class Run:
    """A run of the lists. Simulated at once; `circle` tells who waits when it cannot end."""

    def __init__(self, order: Order, times: StageTimes) -> None:
        count = 1 + max((a.microbatch for actions in order for a in actions), default=0)
        self.order, self.times = order, times
        self.stages = len(times.forward_s)
        self.forward: Ends = [[None] * count for _ in range(self.stages)]
        self.backward: Ends = [[None] * count for _ in range(self.stages)]
        self.weight: Ends = [[None] * count for _ in range(self.stages)]
        self.home = [[-1] * count for _ in range(self.stages)]
        self.clock = [0.0] * len(order)
        self.next = [0] * len(order)
        self.ends: list[list[float]] = [[] for _ in order]
        """End of each action of each rank's list."""
        self.sequence: list[tuple[int, Action]] = []
        """Every action with its rank, after what it waited for."""
        self._go()

    def _go(self) -> None:
        going = [r for r, actions in enumerate(self.order) if actions]
        while going:
            before = sum(self.next)
            for rank in going:
                self._advance(rank)
            if sum(self.next) == before:
                raise DeadlockError(self.circle())
            going = [r for r in going if self.next[r] < len(self.order[r])]

    def _advance(self, rank: int) -> None:
        """Run a rank's actions until one has to wait."""
        actions, ends, home, send = self.order[rank], self.ends[rank], self.home, self.times.send_s
        begin = self.next[rank]
        forward, backward, weight = self.forward, self.backward, self.weight
        forward_s, backward_s, weight_s = self.times.forward_s, self.times.backward_s, self.times.weight_s
        last, i, n, clock = self.stages - 1, self.next[rank], len(actions), self.clock[rank]
        while i < n:
            kind, stage, m, overlaps_next = actions[i]
            if overlaps_next:
                both = self._together(rank, i, clock)
                if both is None:
                    break
                clock, i = both, i + 2
                ends += (clock, clock)
                continue
            if kind == "forward":
                if stage:
                    ready = forward[stage - 1][m]
                    if ready is None:
                        break
                    if home[stage - 1][m] != rank:
                        ready += send
                    if ready > clock:
                        clock = ready
                clock += forward_s[stage]
                forward[stage][m] = clock
                home[stage][m] = rank
            elif kind == "backward_weight":
                if backward[stage][m] is None:
                    break
                clock += weight_s[stage]
                weight[stage][m] = clock
            else:
                if forward[stage][m] is None:
                    break
                if stage != last:
                    ready = backward[stage + 1][m]
                    if ready is None:
                        break
                    if home[stage + 1][m] != rank:
                        ready += send
                    if ready > clock:
                        clock = ready
                clock += backward_s[stage]
                if kind == "backward":
                    weight[stage][m] = clock
                else:
                    clock -= weight_s[stage]
                backward[stage][m] = clock
            ends.append(clock)
            i += 1
        self.sequence += [(rank, action) for action in actions[begin:i]]
        self.next[rank], self.clock[rank] = i, clock

    def _together(self, rank: int, i: int, clock: float) -> float | None:
        """The end of action i and the one overlaps_next to it; None while either has to wait."""
        pair = self.order[rank][i : i + 2]
        for action in pair:
            ready = self._ready(action, rank)
            if ready is None:
                return None
            clock = max(clock, ready)
        end = clock + sum(map(self.times.of, pair))
        for kind, stage, m, _ in pair:
            if kind == "forward":
                self.forward[stage][m], self.home[stage][m] = end, rank
            elif kind != "backward_weight":
                self.backward[stage][m] = end
            if kind in ("backward", "backward_weight"):
                self.weight[stage][m] = end
        return end

    def _ready(self, action: Action, rank: int) -> float | None:
        """When what an action needs is there; None while it is not.

        A forward needs the stage before, a backward the one after and its own forward, the weights'
        gradient the input's.
        """
        kind, stage, m, _ = action
        if kind == "backward_weight":
            return self.backward[stage][m]
        if kind == "forward":
            if stage == 0:
                return 0.0
            ends, source = self.forward, stage - 1
        elif stage == self.stages - 1 or self.forward[stage][m] is None:
            return self.forward[stage][m]
        else:
            ends, source = self.backward, stage + 1
        end = ends[source][m]
        return end if end is None or self.home[source][m] == rank else end + self.times.send_s

    # Who waits.

    def circle(self) -> tuple[Wait, ...]:
        """The ranks that wait for each other, from the lowest one on."""
        waits = {w.rank: w for r in range(len(self.order)) if (w := self._wait(r)) is not None}
        path: list[int] = []
        rank = min(waits)
        while rank in waits and rank not in path:
            path.append(rank)
            rank = waits[rank].owner
        around = path[path.index(rank) :] if rank in path else path
        low = around.index(min(around))
        return tuple(waits[r] for r in around[low:] + around[:low])

    def _wait(self, rank: int) -> Wait | None:
        """What a rank's next action lacks; None for a rank that has ended."""
        for action in self.order[rank][self.next[rank] : self.next[rank] + 2]:
            if self._ready(action, rank) is None:
                missing = self._missing(action)
                return Wait(rank, action, missing, self._owner(missing, rank))
        return None

    def _missing(self, action: Action) -> Action:
        kind, stage, m, _ = action
        if kind == "forward":
            return Action("forward", stage - 1, m)
        if kind == "backward_weight":
            return Action("backward_input", stage, m)
        if self.forward[stage][m] is None:
            return Action("forward", stage, m)
        return Action("backward", stage + 1, m)

    def _owner(self, wanted: Action, waiting: int) -> int:
        """The rank whose list has it. (Every list is complete: checked before, or ours.)"""
        kinds = ("backward", "backward_input") if wanted.kind == "backward" else (wanted.kind,)
        for rank, actions in enumerate(self.order):
            for a in actions[self.next[rank] :]:
                if a.kind in kinds and (a.stage, a.microbatch) == (wanted.stage, wanted.microbatch):
                    return rank
        return waiting


def simulate(order: Order, times: StageTimes) -> Run:
    """Run the lists to their end. Raises DeadlockError when they wait for themselves."""
    return Run(order, times)


def spans(run: Run) -> list[Ran]:
    """Every action with its times, rank by rank. Joined ones follow each other here, inside their time."""
    found: list[Ran] = []
    for rank, actions in enumerate(run.order):
        for i, (action, end) in enumerate(zip(actions, run.ends[rank], strict=True)):
            later = run.times.of(actions[i + 1]) if action.overlaps_next else 0.0
            found.append(Ran(action, rank, end - later - run.times.of(action), end - later))
    return found
