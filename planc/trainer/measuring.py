"""One process of a measurement: `python -m planc.trainer.measuring TARGET TASK.json`.

Probes, then steps of plans, all ranks alike; rank 0 prints a line `MEASURED {json}` for each. Its rank comes from
RANK and WORLD_SIZE, as a training worker's does.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planc.calibration.probes import Probe
from planc.ir.plan import Plan
from planc.ir.program import Target
from planc.strategies.build import build_file
from planc.trainer import backend, launch

if TYPE_CHECKING:
    from planc.ir.session import Session

MARK = "MEASURED "
LR = 1e-4


def main(target: Target, task: dict[str, Any]) -> None:
    """`task`: `devices`, `window_s`, `probes`, `plans` (paths), `steps` (of each plan)."""
    runtime = backend.runtime(target)
    runtime.prepare_environment(task["devices"])
    tell = _tell(target, task["devices"])
    if task["probes"]:
        prober = import_module(f"planc.backends.{target}.probe").Prober(task["window_s"])
        for probe in task["probes"]:
            one = Probe(**{**probe, "sizes": tuple(probe["sizes"])})
            tell({"seconds": prober.seconds(one)})
    for path in task["plans"]:
        plan = build_file(Path(path), target=target).plan
        assert plan is not None, f"{path} was read before it was sent here"
        tell({"plan": plan.name, **_trained(runtime, plan, target, task["steps"])})


def _tell(target: Target, devices: int) -> Callable[[dict[str, Any]], None]:
    """Rank 0 prints. Where ranks are processes, they meet here first."""
    if target == "xla":
        return lambda row: print(MARK + json.dumps(row), flush=True)
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo", world_size=devices)
    rank = dist.get_rank()

    def tell(row: dict[str, Any]) -> None:
        if rank == 0:
            print(MARK + json.dumps(row), flush=True)

    return tell


def _trained(runtime: Any, plan: Plan, target: Target, steps: int) -> dict[str, Any]:
    """Seconds of each step but the first, which compiles and connects; peak memory, and kernels in use."""
    import numpy as np

    from planc.ir.session import Settings
    from planc.trainer.weights import initial

    session: Session = runtime.start(backend.program(plan, target), Settings(), initial(plan.model, 0))
    stream = np.random.default_rng(0)
    batch = (plan.batch.sequences, plan.batch.sequence_tokens)
    found = []
    for _ in range(steps + 1):
        tokens, targets = (stream.integers(0, plan.model.sizes["vocab"], batch, dtype=np.int32) for _ in range(2))
        start = time.perf_counter()
        session.step(tokens, targets, LR)
        found.append(time.perf_counter() - start)
    return {"steps": found[1:], "peak_gib": session.peak_memory_gib(), "features": session.features}


if __name__ == "__main__":
    main("xla" if sys.argv[1] == "xla" else "cuda", json.loads(Path(sys.argv[2]).read_text()))
    launch.leave(0)
