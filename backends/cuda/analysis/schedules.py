"""Lists torch's pipeline schedule classes, and how each assigns stages to ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from planc.ir.plan import Plan

Layout = Literal["one", "loop", "v"]


@dataclass(frozen=True)
class TorchSchedule:
    """A pipeline schedule class of torch (`name`), and how it assigns stages to ranks (`layout`).

    `one`: one stage per rank; `loop`: round robin over the ranks; `v`: from the first rank to the last and back.
    """

    name: str
    layout: Layout = "loop"

    @property
    def single(self) -> bool:
        return self.layout == "one"


SCHEDULES: dict[str, TorchSchedule] = {
    "gpipe": TorchSchedule("ScheduleGPipe", "one"),
    "1f1b": TorchSchedule("Schedule1F1B", "one"),
    "interleaved_1f1b": TorchSchedule("ScheduleInterleaved1F1B"),
    "looped_bfs": TorchSchedule("ScheduleLoopedBFS"),
    "interleaved_zero_bubble": TorchSchedule("ScheduleInterleavedZeroBubble"),
    "zbv": TorchSchedule("ScheduleZBVZeroBubble", "v"),
    "dualpipev": TorchSchedule("ScheduleDualPipeV", "v"),
}


def in_a_v(plan: Plan) -> bool:
    """True if the pipeline of `plan` assigns stages to ranks in a V: from the first rank to the last and back, so that
    the last rank has two consecutive stages."""
    return plan.split is not None and SCHEDULES[plan.split.schedule].layout == "v"
