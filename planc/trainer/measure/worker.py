"""One process of a measurement: `python -m planc.trainer.measure.worker TARGET TASK.json`.

All ranks run probes, then steps of plans; rank 0 prints a line `MEASURED {json}` for each. The rank comes from RANK and
WORLD_SIZE, as in a training worker.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from planc.calibration.cpu_contention import CALM, ContentionMeter
from planc.checks import check_plan
from planc.ir.plan import Plan
from planc.ir.probe import Probe, Ranks
from planc.ir.target import Target
from planc.language.build import build_file
from planc.lowering import load_backend, lower_plan
from planc.trainer.run import launch

MARK = "MEASURED "
LR = 1e-4


def tell(row: dict[str, Any]) -> None:
    """Print `row` for `coordinator.rows_of_ranks`."""
    print(MARK + json.dumps(row), flush=True)


def main(target: Target, task: dict[str, Any]) -> None:
    """Run `task`: `devices`, `window_s`, `probes`, `plans` (paths), `steps` (of each plan)."""
    backend = load_backend(target)
    backend.runtime().prepare_environment(task["devices"])
    ranks = backend.ranks(task["devices"])

    def tell_once(row: dict[str, Any]) -> None:
        if ranks.first:
            tell(row)

    if task["probes"]:
        prober = backend.prober(task["window_s"], ranks)
        for probe in task["probes"]:
            one = Probe(**{**probe, "sizes": tuple(probe["sizes"])})
            tell_once({"seconds": prober.seconds(one)})
    for path in task["plans"]:
        plan = build_file(Path(path), target=target).plan
        assert plan is not None, f"{path} was read before it was sent here"
        tell_once({"plan": plan.name, **_trained(plan, target, task["steps"], ranks)})


PATIENCE = 2
"""Limit on the steps, as a multiple of the requested number, while other processes disturb them."""
PATIENCE_S = 20.0
"""Seconds of steps after which only the requested number is run."""


def _undisturbed_steps(found: list[tuple[float, float]]) -> int:
    """Return the number of undisturbed steps."""
    return sum(share <= CALM for _, share in found)


def _trained(plan: Plan, target: Target, steps: int, ranks: Ranks) -> dict[str, Any]:
    """The seconds of each step but the first, which compiles and connects, with the processor share of other processes;
    peak memory, and kernels in use.

    Steps continue until the requested number is undisturbed.
    """
    import numpy as np

    from planc.ir.session import Settings
    from planc.trainer.run.initial_weights import initial

    program = lower_plan(check_plan(plan), target, version="installed")
    session = program.backend.runtime().start(program, Settings(), initial(plan.model, 0))
    stream = np.random.default_rng(0)
    batch = (plan.batch.sequences, plan.batch.sequence_tokens)
    found: list[tuple[float, float]] = []
    spent_s = 0.0
    while len(found) <= steps * (PATIENCE if spent_s < PATIENCE_S else 1) and _undisturbed_steps(found[1:]) < steps:
        tokens, targets = (stream.integers(0, plan.model.sizes["vocab"], batch, dtype=np.int32) for _ in range(2))
        ranks.sum(0.0)  # all begin together
        meter, own_s, start = ContentionMeter(), time.process_time(), time.perf_counter()
        session.step(tokens, targets, LR)
        seconds = time.perf_counter() - start
        share = meter.share_beside(ranks, time.process_time() - own_s)
        spent_s += ranks.sum(seconds) / ranks.count
        found.append((seconds, share))
    return {
        "steps": [seconds for seconds, _ in found[1:]],
        "others": [share for _, share in found[1:]],
        "peak_gib": session.peak_memory_gib(),
        "reserved_gib": session.reserved_memory_gib(),
        "features": session.features,
    }


if __name__ == "__main__":
    main("xla" if sys.argv[1] == "xla" else "cuda", json.loads(Path(sys.argv[2]).read_text()))
    launch.leave(0)
