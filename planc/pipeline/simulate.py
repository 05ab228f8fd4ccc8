"""Discrete-event simulation of a schedule: the end time of every action, from the seconds of each stage.

This is the only simulator. `planc.pipeline.steady_state` uses it for long steps, `planc.pipeline.lower_bound` for
relaxed ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from planc.pipeline.actions import Action, Repeat
from planc.pipeline.dag import execution_order
from planc.pipeline.stage_times import StageTimes

NEVER_S = float("-inf")
"""The end that an entry without a wait waits for."""


class Simulation:
    """A running simulation of the entries of an `ExecutionOrder`.

    `ends_s[i]` is the end of entry i (from 1); `clock_s` has for each rank the time until which it is busy.
    """

    def __init__(self, kinds_s: Sequence[tuple[int, float, float]], send_s: float, clock_s: list[float]) -> None:
        """`kinds_s` has (rank, seconds, seconds of the following wgrad) for each kind of entry. `send_s` is the time
        (s) of a send between ranks, and `clock_s` the time (s) until which each rank is busy."""
        self.kinds_s, self.send_s, self.clock_s = kinds_s, send_s, clock_s
        self.ends_s = [NEVER_S]

    def run(self, waits: Iterable[int], kinds: Iterable[int]) -> None:
        """Run entries, each of which starts when its rank is free and its input has arrived. `kinds` has the kind of
        each entry; `waits` has the distance back to the entry whose output it needs, as a negative number."""
        clock, ends, kinds_s, send_s = self.clock_s, self.ends_s, self.kinds_s, self.send_s
        ended = ends.append
        for wait, kind in zip(waits, kinds, strict=True):
            rank, seconds, weights_s = kinds_s[kind]
            start = clock[rank]
            ready = ends[wait] + send_s
            if ready > start:
                start = ready
            end = start + seconds
            ended(end)
            clock[rank] = end + weights_s


class ActionSpan(NamedTuple):
    """An action with its rank, and its start and end in seconds."""

    action: Action
    rank: int
    start_s: float
    end_s: float


def action_spans(lists: Sequence[Sequence[Action]], times: StageTimes) -> list[ActionSpan]:
    """Return the start and end (s) of every action, rank by rank. `lists` has the actions of each rank in order.

    `times` has the seconds of one microbatch on each virtual stage. Overlapped actions are drawn one after the other
    within the time that they take together.
    """
    order = execution_order([_one_by_one(actions) for actions in lists])
    simulation = Simulation(order.entry_kinds_s(times), times.send_s, [0.0] * len(lists))
    simulation.run(order.waits, order.kinds)
    ends_s: list[list[float]] = [[] for _ in lists]
    for kind, end_s in zip(order.kinds, simulation.ends_s[1:], strict=True):
        ends_s[order.entry_kinds[kind][0]].append(end_s)
    found: list[ActionSpan] = []
    for rank, actions in enumerate(lists):
        for i, action in enumerate(actions):
            end_s = ends_s[rank][i]
            if action.overlaps_next:
                end_s = ends_s[rank][i + 1] - times.of(actions[i + 1])
            found.append(ActionSpan(action, rank, end_s - times.of(action), end_s))
    return found


def _one_by_one(actions: Sequence[Action]) -> list[Repeat]:
    """Return a list with one `Repeat` per action or pair of overlapping actions, so that each has its own end time."""
    found: list[Repeat] = []
    i = 0
    while i < len(actions):
        group = tuple(actions[i : i + 1 + actions[i].overlaps_next])
        found.append(Repeat(1, group))
        i += len(group)
    return found
