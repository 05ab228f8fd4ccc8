"""The parts that a random plan is drawn in: axes with their roles, a model, and the files that it reads."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Literal, TypeVar

from planc.ir.model import Model
from planc.pipeline.schedule import Schedule

T = TypeVar("T")
Role = Literal["pp", "replica", "fsdp", "dp", "ep", "cp", "tp"]
DATA: tuple[Role, ...] = ("replica", "fsdp", "dp", "ep")
"""Roles whose ranks have sequences of their own."""
OUTERMOST_FIRST: tuple[Role, ...] = ("pp", "replica", "dp", "fsdp", "ep", "cp", "tp")


class Dice(random.Random):
    """A seeded stream of choices."""

    def chance(self, share: float) -> bool:
        return self.random() < share

    def weighted(self, **weights: float) -> str:
        """One of the names, as often as its weight says."""
        return self.choices(list(weights), list(weights.values()))[0]

    def some(self, things: Sequence[T], least: int = 1, most: int = 3) -> list[T]:
        """A few different ones, in the order given."""
        count = min(len(things), self.randint(least, most))
        chosen = sorted(self.sample(range(len(things)), count))
        return [things[i] for i in chosen]


@dataclass(frozen=True)
class Axis:
    """An axis of the mesh: what it is for, its name in the plan, and its ranks."""

    role: Role
    name: str
    size: int


@dataclass
class Draft:
    """A plan while it is drawn. Each part reads what the earlier ones decided, and adds its sentences."""

    dice: Dice
    small: bool
    """The plan is to be trained here: a tiny model on a few CPU devices."""
    model: Model
    schedule: Schedule | None = None
    chunks: int = 1
    axes: tuple[Axis, ...] = ()
    sentences: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    sequences: int = 1
    sequence_tokens: int = 1
    microbatch: int = 1
    microbatches: int = 1
    divided: tuple[str, ...] = ()
    """Dims that the tensor axis divides."""
    sequence_parallel: bool = False
    ulysses: bool = False
    nouns: tuple[str, ...] = ()
    """State that is stored over axes."""

    def axis(self, role: Role) -> Axis | None:
        return next((a for a in self.axes if a.role == role), None)

    def size(self, role: Role) -> int:
        axis = self.axis(role)
        return axis.size if axis else 1

    @property
    def data(self) -> tuple[Axis, ...]:
        """The axes that divide the batch, in the mesh's order."""
        return tuple(a for a in self.axes if a.role in DATA)

    @property
    def devices(self) -> int:
        return prod(a.size for a in self.axes)

    @property
    def experts(self) -> bool:
        return self.model.top_k > 0

    def say(self, sentence: str) -> None:
        self.sentences.append(sentence)


@dataclass(frozen=True)
class Drawn:
    """A plan that was drawn: its name, its sentences, and the files beside it by name."""

    name: str
    sentences: tuple[str, ...]
    files: dict[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return "\n".join((f"plan {self.name}", *self.sentences)) + "\n"


def names(axes: Sequence[Axis]) -> str:
    return ", ".join(a.name for a in axes)


def divisors(number: int, most: int) -> list[int]:
    """Divisors above 1, up to `most`."""
    return [d for d in range(2, min(number, most) + 1) if number % d == 0]
