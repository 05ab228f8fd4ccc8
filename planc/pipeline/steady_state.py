"""The steps of a schedule. Of a long step that repeats itself, the beginning and the end are followed action by action
and the middle is made from one turn of all ranks.

Ranks that have warmed up do the same turn again and again, some microbatches further every time. If all ranks have
done a turn before any does the next, and that one needs nothing from before the first, then a third one needs of
the second what the second needed of the first: a turn's entries further on, in the same order.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise

from planc.diag.fast_dataclass import dataclass
from planc.pipeline.actions import Repeat, unrolled
from planc.pipeline.dag import START, Lane, Lanes, Steps, in_order, lanes_of, turns_of
from planc.pipeline.schedule import Schedule, Shape
from planc.pipeline.simulate import simulate
from planc.pipeline.stage_times import StageTimes

KEPT = 2
"""Repeat of a core: the first one needs what the warm-up left."""
WORTH = 4
"""Repeat more than that, for which a core is looked for."""


@dataclass(frozen=True)
class Core:
    """A short step, and where the entries of the last turn of all ranks begin and end, of which there may be more."""

    steps: Steps
    begin: int
    end: int

    @property
    def repeats(self) -> bool:
        """Whether the ranks take turns as in the turn before, nothing since then needs what came before that one, and
        microbatches leave every stage in their order."""
        need, what, begin, end = self.steps.need, self.steps.what, self.begin, self.end
        before = begin - (end - begin)
        return (
            what[before:begin] == what[begin:end]
            and all(n > before for n in need[begin:] if n != START)
            and all(entries == sorted(entries) for entries in self.steps.end)
        )

    def longer(self, turns: int) -> Steps:
        """The step with so many more turns."""
        steps, begin, end = self.steps, self.begin, self.end
        length = end - begin
        turn, further = steps.need[begin:end], range(length, (turns + 1) * length, length)
        more = [need and need + by for by in further for need in turn]
        by = turns * length
        return replace(
            steps,
            need=[*steps.need[:end], *more, *[need and need + by for need in steps.need[end:]]],
            what=steps.what[:end] + steps.what[begin:end] * turns + steps.what[end:],
            told=lambda: [self._longer(entries, further) for entries in steps.end],
        )

    def _longer(self, entries: list[int], further: range) -> list[int]:
        """The entries of one stage, microbatch by microbatch. Entries count from 1."""
        first, after, by = bisect_right(entries, self.begin), bisect_right(entries, self.end), further[-1]
        more = [n + m for m in further for n in entries[first:after]]
        return [*entries[:after], *more, *[n + by for n in entries[after:]]]


@lru_cache(maxsize=64)
def steps_of(schedule: Schedule, size: Shape) -> Steps:
    """The steps of a bundled schedule."""
    turns = turns_of(schedule, size)
    steady = tuple(map(_steady, turns))
    more = min(mine[at].times for mine, at in zip(turns, steady, strict=True)) - KEPT
    if more >= WORTH and not schedule.forwards_first and schedule.copies == 1:
        less, in_round = more * turns[0][steady[0]].step, size.round if schedule.in_rounds else 0
        short = Shape(size.ranks, size.chunks, size.microbatches - less, in_round)
        shorter = tuple(_without(mine, at, more) for mine, at in zip(turns, steady, strict=True))
        if turns_of(schedule, short) == shorter and (core := core_of(schedule, short, steady)):
            return core.longer(more)
    lanes = lanes_of(schedule, size)
    need: list[int] = []
    what: list[int] = []
    if not in_order(lanes.lanes, lanes.done, need, what):
        once = (1.0,) * size.stages
        simulate([unrolled(mine) for mine in turns], StageTimes(once, once, (0.5,) * size.stages))  # says who waits
        raise AssertionError("lists that end were not followed to their end")
    return lanes.steps(need, what)


def _steady(turns: list[Repeat]) -> int:
    """Which turns a rank does most often of those that do most."""

    def does(at: int) -> tuple[int, int]:
        times, actions, _ = turns[at]
        return len({action[:2] for action in actions}) if times >= KEPT else 0, times

    return max(range(len(turns)), key=does)


def _without(turns: list[Repeat], at: int, times: int) -> list[Repeat]:
    """A rank's list without so many of its steady turns, and as many microbatches fewer."""
    kept, less = turns[at]._replace(times=turns[at].times - times), times * turns[at].step
    later = (turn._replace(actions=tuple(a.shifted(-less) for a in turn.actions)) for turn in turns[at + 1 :])
    return [*turns[:at], kept, *later]


@lru_cache(maxsize=64)
def core_of(schedule: Schedule, size: Shape, steady: tuple[int, ...]) -> Core | None:
    """A step whose ranks do these turns `KEPT` times or more, with the last of those told apart; None if they do not
    follow each other so that another one may come after it."""
    lanes = lanes_of(schedule, size)
    need: list[int] = []
    what: list[int] = []
    marks = []
    cuts = [[0] * size.ranks, *([lanes.turn_at(r, at, n) for r, at in enumerate(steady)] for n in range(KEPT + 1))]
    for begin, end in pairwise([*cuts, [len(lane.what) for lane in lanes.lanes]]):
        if not in_order(_between(lanes, begin, end), lanes.done, need, what):
            return None
        marks.append(len(need))
    core = Core(lanes.steps(need, what), *marks[-3:-1])
    return core if core.repeats else None


def _between(lanes: Lanes, begin: list[int], end: list[int]) -> list[Lane]:
    """A part of each lane."""
    cut = [slice(a, b) for a, b in zip(begin, end, strict=True)]
    return [Lane(lane.need_at[c], lane.end_at[c], lane.what[c]) for lane, c in zip(lanes.lanes, cut, strict=True)]
