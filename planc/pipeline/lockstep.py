"""Pipelines in lockstep: one program of all ranks, which run at most one forward and one backward each in every tick.

XLA compiles one program for all devices, so that no rank can be ahead of the program's order. In tick t rank r runs its
forward number t - r, and its backward number t - first - (ranks - 1 - r), where `first` is the tick of the first
backward: results and gradients come one tick after they were sent. In the first ticks no rank has a backward yet, and
in the last ones none has a forward any more; these are loops of their own. With backwards as early as they can be, a
step takes as long as 1F1B (Narayanan et al. 2021, https://arxiv.org/abs/2104.04473), and a rank keeps as many
microbatches as interleaved 1F1B does, 2 (ranks - r) - 1 of them with one stage a rank.
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
    """The numbers of a pipeline in lockstep.

    A rank runs its forwards in rounds: `round` microbatches through each of its `chunks` stages in turn, and backwards
    in the same rounds, from the last of its stages on; with one stage a round is one microbatch. `forwards_first`: all
    forwards come before the first backward.
    """

    ranks: int
    chunks: int
    microbatches: int
    round: int
    forwards_first: bool

    @property
    def numbers(self) -> int:
        """Forwards of a rank in a step, those of microbatches that a last round lacks among them.

        >>> Lockstep(ranks=4, chunks=2, microbatches=8, round=4, forwards_first=False).numbers
        16
        """
        return self.chunks * -(-self.microbatches // self.round) * self.round

    @property
    def first_loss(self) -> int:
        """The tick in which the last rank has the first result of the last stage."""
        return (self.chunks - 1) * self.round + self.ranks - 1

    @property
    def forward_ticks(self) -> int:
        """Ticks in which some rank has a forward, from the first one on; as many have a backward, up to the last."""
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
        """Ticks that a microbatch waits between two stages of a rank which the same round is to pass first."""
        return (self.round - self.ranks) if self.chunks > 1 else 0

    @property
    def places(self) -> int:
        """Forwards of one stage whose saved tensors a rank has at once, at most.

        Those of the first rank, whose backwards come last. A backward frees its place for the next tick's forward.

        >>> [Lockstep(4, 1, 32, 1, first).places for first in (True, False)]  # GPipe and 1F1B
        [32, 7]
        """
        return min(self.numbers, self.first_backward + self.ranks)


SUFFIX = "_in_lockstep"
"""Ends the name of a schedule in lockstep, which no plan names: a target runs the plan's own so."""


def in_lockstep(split: Split | None) -> Split | None:
    """The pipeline of a plan's sentence, `split`, in lockstep; None without one, and one of the user's own as it is."""
    return split if split is None or split.order else replace(split, schedule=f"{split.schedule}{SUFFIX}")


@cache
def lockstep_schedule(name: str) -> Schedule:
    """The schedule in lockstep with this `name`: each rank's actions are those of its ticks, in order.

    Those of 1F1B begin with as many forwards as interleaved 1F1B has with one stage a rank. Interleaved 1F1B and the
    schedules with all forwards first have their own order.

    >>> from planc.pipeline.actions import unrolled
    >>> rank_actions = lockstep_schedule("1f1b_in_lockstep").rank_actions
    >>> " ".join(a.text for a in unrolled(rank_actions(ScheduleShape(ranks=3, chunks=1, microbatches=5), 1)))
    '1F0 1F1 1F2 1B0 1F3 1B1 1F4 1B2 1B3 1B4'
    """
    known = schedules()[name.removesuffix(SUFFIX)]
    actions = one_forward_one_backward if known.name == "1f1b" else known.rank_actions
    return replace(known, name=name, rank_actions=actions, need=any_number)


def one_forward_one_backward(shape: ScheduleShape, rank: int) -> list[Repeat]:
    """The actions of rank `rank` for the numbers in `shape`: forwards until its first microbatch has been to the last
    rank and back, then one forward and one backward in each tick."""
    warm_up = min(2 * (shape.ranks - rank - 1), shape.microbatches)
    steady = shape.microbatches - warm_up
    return phases(
        Repeat(warm_up, (Action("forward", rank, 0),)),
        Repeat(steady, (Action("forward", rank, warm_up), Action("backward", rank, 0))),
        Repeat(warm_up, (Action("backward", rank, steady),)),
    )
