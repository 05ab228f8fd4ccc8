"""Actions of a pipeline: one microbatch on one virtual stage, in one direction. Lists of them are made of turns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise, repeat
from typing import Literal, NamedTuple

Kind = Literal["forward", "backward", "backward_input", "backward_weight"]

LETTERS: dict[Kind, str] = {"forward": "F", "backward": "B", "backward_input": "I", "backward_weight": "W"}
"""As torch's schedules write them: `2I1` is the input's gradient of microbatch 1 on stage 2."""
KINDS: dict[str, Kind] = {letter: kind for kind, letter in LETTERS.items()}


class Action(NamedTuple):
    """What a rank does next. `backward` is both parts of the backward at once.

    `joined` actions start together with the one after them and end with it: a forward beside a backward.
    """

    kind: Kind
    stage: int
    microbatch: int
    joined: bool = False

    @property
    def text(self) -> str:
        return f"{self.stage}{LETTERS[self.kind]}{self.microbatch}"

    def later(self, microbatches: int) -> Action:
        kind, stage, microbatch, joined = self
        return NEW(Action, (kind, stage, microbatch + microbatches, joined))


NEW = tuple.__new__
"""Makes an action in a third of the time that `Action(...)` takes: long lists are common."""


class Turns(NamedTuple):
    """These actions one after the other, so many times; `step` microbatches further every time.

    A rank's list is a few of them, however many microbatches there are.
    """

    times: int
    actions: tuple[Action, ...]
    step: int = 1

    def after(self, times: int) -> Turns:
        """What is left of them after so many."""
        return Turns(self.times - times, tuple(a.later(times * self.step) for a in self.actions), self.step)

    def until(self, microbatches: int) -> Iterator[Turns]:
        """Without the microbatches from this one on; `step` is 1."""
        left = self
        while left.times and (kept := tuple(a for a in left.actions if a.microbatch < microbatches)):
            times = min(left.times, *(microbatches - a.microbatch for a in kept))
            yield Turns(times, kept)
            left = left.after(times)


def listed(turns: Iterable[Turns]) -> list[Action]:
    """Every action of these turns. Made column by column: lists of a hundred thousand are common."""
    return list(chain.from_iterable(map(_listed, turns)))


def _listed(turns: Turns) -> Iterable[Action]:
    times, actions, step = turns
    if times <= 1 or not actions:
        return actions * times
    kinds, stages, microbatches, joined = zip(*actions, strict=True)
    later = chain.from_iterable(zip(*(range(m, m + times * step, step) for m in microbatches), strict=True))
    return map(NEW, repeat(Action), zip(kinds * times, stages * times, later, joined * times, strict=True))


class Row(NamedTuple):
    """Turns of one action each, which begin so many turns after the first row; a round is `step` microbatches."""

    begin: int
    turns: list[Turns]
    rounds: int = 1
    step: int = 0

    @property
    def length(self) -> int:
        """Of a round."""
        return sum(t.times for t in self.turns)

    @property
    def end(self) -> int:
        return self.begin + self.rounds * self.length

    def between(self, low: int, high: int) -> Iterator[tuple[int, Action]]:
        """Where each turn begins that is done here, and with what."""
        length = self.length
        for again in range(max(0, (low - self.begin) // length), min(self.rounds, -((self.begin - high) // length))):
            at = self.begin + again * length
            for times, (action,), _ in self.turns:
                if at < high and at + times > low:
                    yield at, action.later(again * self.step)
                at += times


def abreast(*rows: Row) -> list[Turns]:
    """An action of each row in turn while any row goes on. Rounds are alike where all rows go on, and turns then."""
    begin, end, length = max(r.begin for r in rows), min(r.end for r in rows), rows[0].length
    rounds = (end - begin) // length if length else 0
    last = max(r.end for r in rows)
    if rounds < 2:
        return _abreast(rows, 0, last)
    assert all(r.length == length and r.step == rows[0].step for r in rows)
    once = tuple(listed(_abreast(rows, begin, begin + length)))
    later = _abreast(rows, begin + rounds * length, last)
    return [*_abreast(rows, 0, begin), Turns(rounds, once, rows[0].step), *later]


def _abreast(rows: Sequence[Row], low: int, high: int) -> list[Turns]:
    """These rows from one turn to another."""
    changes: dict[int, list[tuple[int, tuple[int, Action] | None]]] = {high: []}
    for i, row in enumerate(rows):
        for at, action in row.between(low, high):
            changes.setdefault(max(low, at), []).append((i, (at, action)))
        if low < row.end < high:
            changes.setdefault(row.end, []).append((i, None))
    running: list[tuple[int, Action] | None] = [None] * len(rows)
    found = []
    for begin, end in pairwise(sorted(changes)):
        for i, now in changes[begin]:
            running[i] = now
        found.append(Turns(end - begin, tuple(a.later(begin - at) for at, a in filter(None, running))))
    return found
