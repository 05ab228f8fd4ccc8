"""Actions of a pipeline: one microbatch on one virtual stage, in one direction."""

from __future__ import annotations

from itertools import chain, repeat
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


def in_turn(times: int, *first: Action) -> list[Action]:
    """These actions so many times, each with its next microbatch every time.

    Made column by column: lists of a hundred thousand are common, and an `Action(...)` takes three times as long.
    """
    if not first:
        return []
    kinds, stages, microbatches, joined = zip(*first, strict=True)
    later = chain.from_iterable(zip(*(range(m, m + times) for m in microbatches), strict=True))
    return list(
        map(tuple.__new__, repeat(Action), zip(kinds * times, stages * times, later, joined * times, strict=True))
    )
