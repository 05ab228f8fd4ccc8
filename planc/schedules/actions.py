"""Actions of a pipeline: one microbatch on one virtual stage, in one direction. Lists of them are made of turns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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


def abreast(*rows: tuple[int, list[Turns]]) -> list[Turns]:
    """An action of each row in turn while any row goes on. A row begins so many turns after the first; its own turns
    are of one action each, a microbatch further every time."""
    changes: dict[int, list[tuple[int, Action | None]]] = {}
    for row, (begin, turns) in enumerate(rows):
        for times, actions, _ in turns:
            changes.setdefault(begin, []).append((row, actions[0]))
            begin += times
        changes.setdefault(begin, []).append((row, None))
    running: list[tuple[int, Action] | None] = [None] * len(rows)
    found = []
    for begin, end in pairwise(sorted(changes)):
        for row, action in changes[begin]:
            running[row] = (begin, action) if action else None
        now = [(action.later(begin - at) if begin > at else action) for at, action in filter(None, running)]
        found.append(Turns(end - begin, tuple(now)))
    return found
