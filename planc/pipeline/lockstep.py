"""Pipelines in lockstep: all ranks run one program (SPMD), with at most one forward and one backward each per tick.

XLA compiles one program for all devices, so no rank can run ahead. Rank r runs forward number t - r in tick t, and
backward number t - b - (ranks - 1 - r), where b is the tick of the first backward: activations and gradients arrive one
tick after they are sent. The first ticks without backwards and the last ones without forwards are separate loops. With
backwards as early as possible, a step takes as long as 1F1B (Narayanan et al. 2021, https://arxiv.org/abs/2104.04473),
but a rank holds as many microbatches as in interleaved 1F1B: 2 (ranks - r) - 1 with one stage per rank.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import NamedTuple

from planc.ir.plan import Split
from planc.pipeline.actions import Action, Repeat, phases
from planc.pipeline.schedule import Schedule, ScheduleShape, any_number
from planc.pipeline.schedules import schedules


class Lockstep(NamedTuple):
    """The parameters of a pipeline in lockstep.

    Each rank runs `chunks` stages. In a round, it runs the forwards of `round` microbatches on its first stage, then on
    its second and so on; backwards run in the same rounds, from its last stage on. With one stage per rank, a round is
    one microbatch. If `forwards_first`, all forwards run before the first backward.
    """

    ranks: int
    chunks: int
    microbatches: int
    round: int
    forwards_first: bool

    @property
    def numbers(self) -> int:
        """Number of forwards that a rank runs in a step, over all its stages. The last round counts in full.

        >>> Lockstep(ranks=4, chunks=2, microbatches=8, round=4, forwards_first=False).numbers
        16
        """
        return self.chunks * -(-self.microbatches // self.round) * self.round

    @property
    def first_loss(self) -> int:
        """Index of the tick in which the last stage runs its first forward."""
        return (self.chunks - 1) * self.round + self.ranks - 1

    @property
    def forward_ticks(self) -> int:
        """Number of ticks in which at least one rank runs a forward; the number for backwards is the same."""
        return self.numbers + self.ranks - 1

    @property
    def first_backward(self) -> int:
        """Index of the tick in which the last rank runs the first backward."""
        return self.forward_ticks if self.forwards_first else self.first_loss

    @property
    def ticks(self) -> int:
        """Number of ticks of a step."""
        return self.first_backward + self.forward_ticks

    @property
    def delay(self) -> int:
        """Number of ticks that a microbatch waits between two stages of a rank, because the rank's round has more
        microbatches than there are ranks."""
        return (self.round - self.ranks) if self.chunks > 1 else 0

    @property
    def places(self) -> int:
        """Largest number of forwards (one microbatch on one stage) whose saved tensors a rank holds at once.

        The first rank holds most, because its backwards come last. A backward frees its slot for the forward of the
        next tick.

        >>> [Lockstep(4, 1, 32, 1, first).places for first in (True, False)]  # GPipe and 1F1B
        [32, 7]
        """
        return min(self.numbers, self.first_backward + self.ranks)


SUFFIX = "_in_lockstep"
"""Suffix of the name of a schedule in lockstep. Plans do not name it: a target runs the plan's own schedule so."""


def in_lockstep(split: Split | None) -> Split | None:
    """Return `split` with its schedule in lockstep; schedules from a file, and None (no pipeline), are unchanged."""
    return split if split is None or split.order else replace(split, schedule=f"{split.schedule}{SUFFIX}")


@cache
def lockstep_schedule(name: str) -> Schedule:
    """Return the schedule called `name` (with the suffix `_in_lockstep`): the actions of each rank in the order of its
    ticks.

    1F1B then begins with as many forwards as interleaved 1F1B with one stage per rank. Interleaved 1F1B, and schedules
    that run all forwards first, keep their order.

    >>> from planc.pipeline.actions import unrolled
    >>> rank_actions = lockstep_schedule("1f1b_in_lockstep").rank_actions
    >>> " ".join(a.text for a in unrolled(rank_actions(ScheduleShape(ranks=3, chunks=1, microbatches=5), 1)))
    '1F0 1F1 1F2 1B0 1F3 1B1 1F4 1B2 1B3 1B4'
    """
    known = schedules()[name.removesuffix(SUFFIX)]
    actions = one_forward_one_backward if known.name == "1f1b" else known.rank_actions
    return replace(known, name=name, rank_actions=actions, need=any_number)


def one_forward_one_backward(shape: ScheduleShape, rank: int) -> list[Repeat]:
    """Return the actions of rank `rank`, for `shape` (ranks, chunks, microbatches): forwards until the first microbatch
    returns from the last rank, then a forward and a backward per tick."""
    warm_up = min(2 * (shape.ranks - rank - 1), shape.microbatches)
    steady = shape.microbatches - warm_up
    return phases(
        Repeat(warm_up, (Action("forward", rank, 0),)),
        Repeat(steady, (Action("forward", rank, warm_up), Action("backward", rank, 0))),
        Repeat(warm_up, (Action("backward", rank, steady),)),
    )
