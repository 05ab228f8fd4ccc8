"""The type of a pipeline schedule: each rank's actions and stages, and the numbers of microbatches that it can run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from planc.diag.fast_dataclass import dataclass
from planc.pipeline.actions import Repeat

Placement = Literal["loop", "v", "both"]
"""Placement of the virtual stages on `P` ranks. `loop`: stage s on rank s mod P. `v`: down the ranks and back up, with
stage P on the last rank again. `both`: two pipelines in opposite directions, so rank r holds stages r and P - 1 - r."""


class ScheduleShape(NamedTuple):
    """The parameters of a schedule's action lists. `chunks` is the number of virtual stages per rank."""

    ranks: int
    chunks: int
    microbatches: int
    fixed_round: int = 0
    """Microbatches per round, for a shortened step that keeps the rounds of the longer one. 0: derived."""

    @property
    def stages(self) -> int:
        """Number of virtual stages of the whole pipeline."""
        return self.ranks * self.chunks

    @property
    def round(self) -> int:
        """Number of microbatches per round of an interleaved schedule: the number of ranks, or a few more.

        As in torch, a step has `microbatches // ranks` rounds, at least one, of equal length.
        """
        return self.fixed_round or self.microbatches // max(1, self.microbatches // self.ranks)


class Need(NamedTuple):
    """A requirement on the number of microbatches, in words, and the nearest number that meets it."""

    text: str
    microbatches: int


def any_number(shape: ScheduleShape) -> Need | None:
    """Return None for every `shape`: the schedule can run any number of microbatches."""
    return None


@dataclass(frozen=True, kw_only=True, eq=False)
class Schedule:
    """A pipeline schedule, such as 1F1B."""

    name: str
    position: int
    """Position in lists that are shown to users."""
    rank_actions: Callable[[ScheduleShape, int], list[Repeat]]
    """Returns the action list of a rank: warm-up, steady state, cool-down."""
    chunks: int = 1
    """Virtual stages per rank, unless the plan gives another number (`free_chunks`)."""
    free_chunks: bool = False
    placement: Placement = "loop"
    need: Callable[[ScheduleShape], Need | None] = any_number
    """Returns None if the schedule runs this number of microbatches, else the requirement that is not met."""
    in_rounds: bool = False
    """Microbatches are issued in rounds of `ScheduleShape.round`."""
    even_ranks: bool = False
    """The number of ranks must be even."""
    equal_stages: bool = False
    """All stages must hold the same number of layers."""
    forwards_first: bool = False
    """True if every rank runs all forwards of a stage, then those of its next stage, then all backwards likewise;
    otherwise forwards and backwards alternate in a steady state."""

    @property
    def copies(self) -> int:
        """Number of ranks that hold each stage: 2 for dualpipe, else 1."""
        return 2 if self.placement == "both" else 1


def stages_at(placement: Placement, ranks: int, chunks: int, rank: int) -> tuple[int, ...]:
    """Return the virtual stages of rank `rank`, in order, if `ranks` ranks hold `chunks` stages each with this
    `placement`.

    >>> stages_at("loop", 4, 2, 1), stages_at("v", 4, 2, 1), stages_at("both", 4, 1, 1)
    ((1, 5), (1, 6), (1, 2))
    """
    if placement == "v":
        return rank, 2 * ranks - 1 - rank
    if placement == "both":
        return tuple(sorted({rank, ranks - 1 - rank}))
    return tuple(range(rank, ranks * chunks, ranks))


def minimum_microbatches(minimum: int, shape: ScheduleShape) -> Need | None:
    """Return None if `shape` has at least `minimum` microbatches, else this requirement."""
    return Need(f"at least {minimum}", minimum) if shape.microbatches < minimum else None


def whole_rounds(shape: ScheduleShape) -> Need | None:
    """Return None if the microbatches of `shape` form equal rounds of at least one per rank, else this requirement.

    >>> whole_rounds(ScheduleShape(ranks=4, chunks=2, microbatches=9))
    Need(text='a multiple of 4', microbatches=12)
    """
    rounds = max(1, shape.microbatches // shape.ranks)
    if shape.microbatches % rounds == 0:
        return None
    return Need(f"a multiple of {shape.ranks}", -(-shape.microbatches // shape.ranks) * shape.ranks)
