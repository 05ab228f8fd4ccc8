"""The peak of one step by our tracker and by torch's FSDPMemTracker: `both_trackers.py` prints both in bytes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from planc.backends.cuda.audit.memory import MemoryTracker
from planc.backends.cuda.audit.trace import _Step
from tests.audit.stepping import stepping


def peaks(name: str, *, theirs: bool) -> int:
    """Peak bytes of a step that follows one which nobody watched: torch's buffers are there."""
    with stepping(name) as (step, model, *_):
        return _theirs(model, step) if theirs else _ours(step)


def _ours(step: _Step) -> int:
    tracker = MemoryTracker()
    with tracker:
        tracker.hold(step.state())
        step()
    return tracker.peak


def _theirs(model: Any, step: _Step) -> int:
    tracker = FSDPMemTracker(model, step._optimizer)
    tracker.track_inputs(step._batch)
    with tracker:
        step()
    return next(snap["Total"] for snap in tracker.get_tracker_snapshot("peak").values())


if __name__ == "__main__":
    print(json.dumps(peaks(sys.argv[1], theirs=sys.argv[2] == "torch")))
