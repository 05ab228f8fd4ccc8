"""What a schedule is: its lists, where its stages lie, and what it asks of the numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from planc.diag.fast_dataclass import dataclass
from planc.schedules.actions import Action, Turns, listed

Placement = Literal["loop", "v", "both"]
"""`loop`: stages go round the ranks. `v`: down the ranks and back. `both`: a pipeline each way, so that a
rank holds its stage and its mirror's."""


class Shape(NamedTuple):
    """The numbers a schedule's lists depend on. `chunks` are virtual stages a rank."""

    ranks: int
    chunks: int
    microbatches: int
    given_round: int = 0
    """Microbatches of a round, when they are those of a longer step of which this is a short one."""

    @property
    def stages(self) -> int:
        return self.ranks * self.chunks

    @property
    def round(self) -> int:
        """Microbatches handed out together by interleaved schedules: as many as ranks, or a few more.

        torch's rule: microbatches over (microbatches // ranks) rounds; fewer than ranks make one round.
        """
        return self.given_round or self.microbatches // max(1, self.microbatches // self.ranks)


class Need(NamedTuple):
    """What a schedule asks of the number of microbatches, in words, and the nearest number that has it."""

    text: str
    microbatches: int


def anything(shape: Shape) -> Need | None:
    return None


@dataclass(frozen=True, kw_only=True, eq=False)
class Schedule:
    """`turns` makes a rank's list; `need` says what is wrong with the microbatches, if anything; `place` orders
    lists of schedules. There is one of each, so that none is compared but by what it is."""

    name: str
    place: int
    turns: Callable[[Shape, int], list[Turns]]
    chunks: int = 1
    free_chunks: bool = False
    placement: Placement = "loop"
    need: Callable[[Shape], Need | None] = anything
    in_rounds: bool = False
    """Whether microbatches are handed out in rounds of `Shape.round`."""
    even_ranks: bool = False
    equal_stages: bool = False
    steady: bool = True
    """Whether a long step repeats itself in the middle; otherwise all forwards come first."""

    @property
    def copies(self) -> int:
        """Ranks that hold each stage."""
        return 2 if self.placement == "both" else 1

    def order(self, shape: Shape, rank: int) -> list[Action]:
        """What a rank runs, action by action."""
        return listed(self.turns(shape, rank))


def stages_at(placement: Placement, ranks: int, chunks: int, rank: int) -> tuple[int, ...]:
    """The virtual stages of a rank."""
    if placement == "v":
        return rank, 2 * ranks - 1 - rank
    if placement == "both":
        return tuple(sorted({rank, ranks - 1 - rank}))
    return tuple(range(rank, ranks * chunks, ranks))


def at_least(least: int, shape: Shape) -> Need | None:
    return Need(f"at least {least}", least) if shape.microbatches < least else None


def whole_rounds(shape: Shape) -> Need | None:
    """Interleaved schedules hand out microbatches in equal rounds of at least one a rank."""
    rounds = max(1, shape.microbatches // shape.ranks)
    if shape.microbatches % rounds == 0:
        return None
    return Need(f"a multiple of {shape.ranks}", -(-shape.microbatches // shape.ranks) * shape.ranks)
