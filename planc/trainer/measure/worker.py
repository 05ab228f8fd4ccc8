"""One process of a measurement: `python -m planc.trainer.measure.worker TARGET TASK.json`.

All ranks run the probes, and then the steps of the plans. Rank 0 prints a line `MEASURED {json}` for each result. The
rank comes from RANK and WORLD_SIZE, as in a training worker.
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
    """Print `row` as a line that `coordinator.rows_of_ranks` reads."""
    print(MARK + json.dumps(row), flush=True)


def main(target: Target, task: dict[str, Any]) -> None:
    """Run the measurements in `task`, which has `devices`, `window_s`, `probes`, `plans` (paths) and `steps` (of each
    plan)."""
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
    """Return the number of steps that other processes did not disturb."""
    return sum(share <= CALM for _, share in found)


def _trained(plan: Plan, target: Target, steps: int, ranks: Ranks) -> dict[str, Any]:
    """Train `plan` for some steps and return the results: the seconds of each step, the share of the processors that
    other processes used in it, peak memory, and the kernels in use.

    The first step is left out, because it compiles and connects. Steps continue until `steps` of them are undisturbed,
    or until a limit on the number of steps.
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
