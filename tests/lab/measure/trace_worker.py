"""One rank of a traced step: `python -m tests.lab.measure.trace_worker TASK.json`.

Two steps connect and compile, one is timed, one is traced. Rank 0 tells for every rank what its profiler saw.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from planc.backends.cuda.runtime.start_up import prepare_environment, start
from planc.checks import check_plan
from planc.ir.session import Settings
from planc.language.build import build_file
from planc.lowering import lower_plan
from planc.trainer.measure.worker import tell
from planc.trainer.run import launch
from planc.trainer.run.initial_weights import initial
from tests.lab.measure import trace
from tests.lab.measure.joining import join
from tests.lab.measure.parity_worker import LR, batches


def facts_of(events: trace.Events) -> dict[str, Any]:
    """Seconds of communication, of its exposed part and of compute in a trace's `events`, and NCCL's calls."""
    moving, busy = trace.communication(events), trace.computing(events)
    return {
        "communication_s": trace.length_s(moving),
        "exposed_s": trace.length_s(trace.uncovered(moving, busy)),
        "compute_s": trace.length_s(busy),
        "nccl": {op: total.to_json() for op, total in trace.nccl_calls(events).items()},
    }


def main(task: dict[str, Any]) -> None:
    """`task`: `plan` (path)."""
    prepare_environment(1)
    join(shared=False)
    plan = build_file(Path(task["plan"]), target="cuda").plan
    assert plan is not None, "it was read before it was sent here"
    session = start(lower_plan(check_plan(plan), "cuda", version="installed"), Settings(), initial(plan.model, 0))
    first, second, timed, traced = batches(plan, 4)
    for batch in (first, second):
        session.step(*batch, LR)
    dist.barrier()
    began = time.perf_counter()
    session.step(*timed, LR)
    step_s = time.perf_counter() - began
    with tempfile.TemporaryDirectory() as folder:
        dist.barrier()
        with session.profile(folder):
            session.step(*traced, LR)
            if torch.cuda.is_available():
                torch.cuda.synchronize()
        facts = {"step_s": step_s, **facts_of(trace.read_trace(next(Path(folder).glob("rank-*.json"))))}
    every: list[dict[str, Any]] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(every, facts)
    if dist.get_rank() == 0:
        tell({"ranks": every})
    dist.barrier()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
    launch.leave(0)
