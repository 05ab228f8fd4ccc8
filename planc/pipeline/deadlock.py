"""Finds deadlocks of a schedule: ranks that wait for each other in a cycle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from planc.pipeline.actions import Action, Repeat, unrolled


class Wait(NamedTuple):
    """A blocked rank: its next action (`action`), the action that this one waits for (`needs`), and the rank that would
    run that one (`owner`)."""

    rank: int
    action: Action
    needs: Action
    owner: int

    def text(self) -> str:
        """Return "rank R waits at ACTION for ACTION of rank R", for diagnostics."""
        where = "itself" if self.owner == self.rank else f"rank {self.owner}"
        return f"rank {self.rank} waits at {self.action.text} for {self.needs.text} of {where}"


def find_deadlock(lists: Sequence[Sequence[Repeat]]) -> tuple[Wait, ...]:
    """Return the cycle of ranks that wait for each other, beginning with the lowest rank; () if there is no deadlock.

    `lists` has the actions of each rank. A forward waits for the forward of the previous stage; a backward for the
    forward of its stage and the backward of the next stage; a wgrad for its dgrad. Every action must be in exactly one
    list.

    >>> find_deadlock([[Repeat(1, (Action("backward", 0, 0), Action("forward", 0, 0)))]])[0].text()
    'rank 0 waits at 0B0 for 0F0 of itself'
    """
    return _Progress([unrolled(mine) for mine in lists]).deadlock()


class _Progress:
    """Runs the actions of every rank as far as they can run, without regard to seconds."""

    def __init__(self, lists: list[list[Action]]) -> None:
        self.lists = lists
        self.last = max((a.stage for actions in lists for a in actions), default=0)
        self.ended: set[tuple[str, int, int]] = set()
        self.next = [0] * len(lists)
        while sum(map(self._advance, range(len(lists)))):
            pass

    def _advance(self, rank: int) -> bool:
        """Run the actions of a rank until one must wait. Return True if any ran."""
        begin = self.next[rank]
        while (group := self._group(rank)) and not any(map(self._missing, group)):
            self.ended.update((_direction(a), a.stage, a.microbatch) for a in group)
            self.next[rank] += len(group)
        return self.next[rank] > begin

    def _group(self, rank: int) -> list[Action]:
        """Return the next action of a rank, or the next two if they overlap; [] if the rank has finished."""
        at, actions = self.next[rank], self.lists[rank]
        return actions[at : at + 1 + actions[at].overlaps_next] if at < len(actions) else []

    def _missing(self, action: Action) -> Action | None:
        """Return the action that `action` waits for; None if `action` can run."""
        return next((a for a in self._needs(action) if (_direction(a), a.stage, a.microbatch) not in self.ended), None)

    def _needs(self, action: Action) -> list[Action]:
        kind, stage, m, _ = action
        if kind == "forward":
            return [Action("forward", stage - 1, m)] if stage else []
        if kind == "backward_weight":
            return [Action("backward_input", stage, m)]
        after = [Action("backward", stage + 1, m)] if stage < self.last else []
        return [Action("forward", stage, m), *after]

    def deadlock(self) -> tuple[Wait, ...]:
        """Return the cycle of waits that the lowest blocked rank leads to; () if no rank is blocked."""
        waits = {w.rank: w for rank in range(len(self.lists)) if (w := self._wait_of_rank(rank)) is not None}
        if not waits:
            return ()
        path: list[int] = []
        rank = min(waits)
        while rank in waits and rank not in path:
            path.append(rank)
            rank = waits[rank].owner
        circle = path[path.index(rank) :] if rank in path else path
        low = circle.index(min(circle))
        return tuple(waits[r] for r in circle[low:] + circle[:low])

    def _wait_of_rank(self, rank: int) -> Wait | None:
        for action in self._group(rank):
            if (missing := self._missing(action)) is not None:
                return Wait(rank, action, missing, self._owner(missing, rank))
        return None

    def _owner(self, wanted: Action, waiting: int) -> int:
        """Return the rank that still has to run the action `wanted`; the rank `waiting` if none has it."""
        key = _direction(wanted), wanted.stage, wanted.microbatch
        for rank, actions in enumerate(self.lists):
            if any((_direction(a), a.stage, a.microbatch) == key for a in actions[self.next[rank] :]):
                return rank
        return waiting


def _direction(action: Action) -> str:
    """Return the action's kind, except that a dgrad counts as the backward, for which other stages wait."""
    return "backward" if action.kind == "backward_input" else action.kind


def circle_of(order: tuple[str, ...]) -> tuple[Wait, ...]:
    """Return the cycle of ranks that wait for each other; () if there is no deadlock. `order` has one line of
    comma-separated actions per rank."""
    from planc.pipeline import csv_schedule

    return find_deadlock([[Repeat(1, row)] for row in csv_schedule.rows(order)])
