"""Seconds of one microbatch on each virtual stage: the input of a schedule's simulation."""

from __future__ import annotations

from collections.abc import Sequence
from operator import add
from typing import NamedTuple

from planc.pipeline.actions import Action


class StageTimes(NamedTuple):
    """Seconds of one microbatch on each virtual stage, and seconds of a send to the next rank."""

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    """The whole backward: dgrad and wgrad."""
    weight_s: tuple[float, ...]
    """The wgrad part of the backward."""
    send_s: float = 0.0
    """Seconds from the end of a stage until its output has arrived on another rank."""

    def of(self, action: Action) -> float:
        """Return the seconds of `action` if it runs alone."""
        if action.kind == "forward":
            return self.forward_s[action.stage]
        if action.kind == "backward":
            return self.backward_s[action.stage]
        weight = self.weight_s[action.stage]
        return weight if action.kind == "backward_weight" else self.backward_s[action.stage] - weight


def stage_times(
    forward_s: Sequence[float], backward_s: Sequence[float], send_s: float = 0.0, weight_s: Sequence[float] = ()
) -> StageTimes:
    """Return the times of a pipeline's stages: `forward_s` and `backward_s` (s per microbatch) of each, and `send_s`
    (s) for a send between ranks. The wgrad of each stage takes `weight_s`; if that is empty, half of its backward.

    >>> stage_times([1.0, 1.0], [2.0, 2.0]).weight_s
    (1.0, 1.0)
    """
    weights = tuple(weight_s) or tuple(s / 2 for s in backward_s)
    return StageTimes(tuple(forward_s), tuple(backward_s), weights, send_s)


def busy_s(stages_by_rank: Sequence[Sequence[int]], microbatches: float, times: StageTimes) -> tuple[float, ...]:
    """Return for each rank the seconds of its forwards and backwards in a step.

    `stages_by_rank` has the virtual stages of each rank, and `times` the seconds of one microbatch on each.
    `microbatches` is the number that a rank runs on each of its stages: half of the step's in dualpipe.

    >>> busy_s([[0, 1]], 8, stage_times([1.0, 1.0], [2.0, 2.0]))  # 8 x (1 + 2) s on two stages
    (48.0,)
    """
    both = list(map(add, times.forward_s, times.backward_s))
    return tuple([microbatches * sum([both[v] for v in stages]) for stages in stages_by_rank])
