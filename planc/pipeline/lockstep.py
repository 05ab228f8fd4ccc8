"""Pipelines in lockstep: all ranks run one program (SPMD), with at most one forward and one backward each per tick.

XLA compiles one program for all devices, so no rank can run ahead of the program's order. In tick t rank r runs its
forward number t - r, and its backward number t - first - (ranks - 1 - r), where `first` is the tick of the first
backward: activations and gradients arrive one tick after they are sent. In the first ticks no rank has a backward, and
in the last ones none has a forward; these are separate loops. With backwards as early as possible, a step takes as long
as 1F1B (Narayanan et al. 2021, https://arxiv.org/abs/2104.04473), and a rank holds as many microbatches as in
interleaved 1F1B, 2 (ranks - r) - 1 of them with one stage per rank.
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

    A rank runs its forwards in rounds: `round` microbatches through each of its `chunks` stages in turn, and backwards
    in the same rounds, from its last stage on; with one stage a round is one microbatch. `forwards_first`: all forwards
    run before the first backward.
    """

    ranks: int
    chunks: int
    microbatches: int
    round: int
    forwards_first: bool

    @property
    def numbers(self) -> int:
        """Number of forwards of a rank in a step, including those for microbatches missing in the last round.

        >>> Lockstep(ranks=4, chunks=2, microbatches=8, round=4, forwards_first=False).numbers
        16
        """
        return self.chunks * -(-self.microbatches // self.round) * self.round

    @property
    def first_loss(self) -> int:
        """The tick in which the last rank has the first output of the last stage."""
        return (self.chunks - 1) * self.round + self.ranks - 1

    @property
    def forward_ticks(self) -> int:
        """Number of ticks in which some rank has a forward, and equally of those in which some rank has a backward."""
        return self.numbers + self.ranks - 1

    @property
    def first_backward(self) -> int:
        """The tick in which the last rank runs the first backward."""
        return self.forward_ticks if self.forwards_first else self.first_loss

    @property
    def ticks(self) -> int:
        """Number of ticks of a step."""
        return self.first_backward + self.forward_ticks

    @property
    def delay(self) -> int:
        """Number of ticks that a microbatch waits between two stages of a rank, for the rest of its round."""
        return (self.round - self.ranks) if self.chunks > 1 else 0

    @property
    def places(self) -> int:
        """Largest number of forwards of one stage whose saved tensors a rank holds at once.

        The first rank holds most, because its backwards come last. A backward frees its slot for the forward of the
        next tick.

        >>> [Lockstep(4, 1, 32, 1, first).places for first in (True, False)]  # GPipe and 1F1B
        [32, 7]
        """
        return min(self.numbers, self.first_backward + self.ranks)


SUFFIX = "_in_lockstep"
"""Suffix of the name of a schedule in lockstep. Plans do not name it: a target runs the plan's own schedule so."""


def in_lockstep(split: Split | None) -> Split | None:
    """Return the pipeline `split` of a plan with its schedule in lockstep. None without a pipeline; a schedule from a
    file is unchanged."""
    return split if split is None or split.order else replace(split, schedule=f"{split.schedule}{SUFFIX}")


@cache
def lockstep_schedule(name: str) -> Schedule:
    """Return the schedule in lockstep with this `name`: the actions of each rank in the order of its ticks.

    1F1B begins with as many forwards as interleaved 1F1B with one stage per rank. Interleaved 1F1B, and schedules that
    run all forwards first, keep their order.

    >>> from planc.pipeline.actions import unrolled
    >>> rank_actions = lockstep_schedule("1f1b_in_lockstep").rank_actions
    >>> " ".join(a.text for a in unrolled(rank_actions(ScheduleShape(ranks=3, chunks=1, microbatches=5), 1)))
    '1F0 1F1 1F2 1B0 1F3 1B1 1F4 1B2 1B3 1B4'
    """
    known = schedules()[name.removesuffix(SUFFIX)]
    actions = one_forward_one_backward if known.name == "1f1b" else known.rank_actions
    return replace(known, name=name, rank_actions=actions, need=any_number)


def one_forward_one_backward(shape: ScheduleShape, rank: int) -> list[Repeat]:
    """Return the actions of rank `rank` for the numbers in `shape`: forwards until its first microbatch has been to the
    last rank and back, then one forward and one backward per tick."""
    warm_up = min(2 * (shape.ranks - rank - 1), shape.microbatches)
    steady = shape.microbatches - warm_up
    return phases(
        Repeat(warm_up, (Action("forward", rank, 0),)),
        Repeat(steady, (Action("forward", rank, warm_up), Action("backward", rank, 0))),
        Repeat(warm_up, (Action("backward", rank, steady),)),
    )
