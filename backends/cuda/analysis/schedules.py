"""torch's classes for pipeline schedules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from planc.ir.plan import Plan

Layout = Literal["one", "loop", "v"]


@dataclass(frozen=True)
class Schedule:
    """torch's class for a schedule, and where a rank's stages lie.

    `one` stage a rank; a `loop` goes round the ranks; a `v` goes down the ranks and back.
    """

    name: str
    layout: Layout = "loop"

    @property
    def single(self) -> bool:
        return self.layout == "one"


SCHEDULES: dict[str, Schedule] = {
    "gpipe": Schedule("ScheduleGPipe", "one"),
    "1f1b": Schedule("Schedule1F1B", "one"),
    "interleaved_1f1b": Schedule("ScheduleInterleaved1F1B"),
    "looped_bfs": Schedule("ScheduleLoopedBFS"),
    "interleaved_zero_bubble": Schedule("ScheduleInterleavedZeroBubble"),
    "zbv": Schedule("ScheduleZBVZeroBubble", "v"),
    "dualpipev": Schedule("ScheduleDualPipeV", "v"),
}


def in_a_v(plan: Plan) -> bool:
    """True if the stages of the pipeline of `plan` lie in a V: a rank holds two that follow each other."""
    return plan.split is not None and SCHEDULES[plan.split.schedule].layout == "v"
