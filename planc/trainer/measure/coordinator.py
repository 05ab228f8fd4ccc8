"""Measures this machine: times probes (single ops and collectives) and training steps of plans, with as many processes
as a training run has."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median_low
from typing import Any

from planc.calibration.cpu_contention import CALM
from planc.calibration.probes import MeasuredProbe
from planc.ir.probe import Probe
from planc.ir.target import Target
from planc.trainer.measure.worker import MARK
from planc.trainer.run import launch

STEPS = 12
"""Undisturbed steps to measure per plan; the result is their median, as in training reports."""


class MeasuringError(Exception):
    """Raised if a measurement fails, with the reason and the last output of a failed process."""


@dataclass(frozen=True)
class Measurement:
    """The times (s) of the probes and of each plan's steps. The dicts are keyed by the name of the plan."""

    probes: tuple[MeasuredProbe, ...]
    steps: dict[str, tuple[float, ...]]
    peak_gib: dict[str, float | None] = field(default_factory=dict)
    """Peak memory (GiB) of rank 0's device, or of its process if it has none."""
    reserved_gib: dict[str, float | None] = field(default_factory=dict)
    """The most memory (GiB) that the framework's allocator reserved on rank 0's device; None on a CPU."""
    features: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Kernels and compilers in use."""
    others: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """Share of processor time that other processes used during each step."""

    def step_s(self, plan: str) -> float:
        """Return the seconds of a step of the plan called `plan`: the median of the undisturbed steps, as training
        reports it.

        If all steps were disturbed by other processes, return the seconds of the least disturbed step, minus the share
        of time that other processes took.
        """
        return self._counted(plan)[0]

    def disturbed(self, plan: str) -> float:
        """Return the share (0 to 1) of the processors that other processes used during the step that `step_s` reports
        for the plan called `plan`."""
        return self._counted(plan)[1]

    def _counted(self, plan: str) -> tuple[float, float]:
        """Return the median of a plan's calm steps, or of the least disturbed ones: its seconds without the share of
        the processors that other processes used, and this share."""
        steps = self.steps[plan]
        shares = self.others.get(plan) or (0.0,) * len(steps)
        least = max(CALM, min(shares))  # without a calm step, the least disturbed one counts
        kept = [(s * (1 - share), share) for s, share in zip(steps, shares, strict=True) if share <= least]
        return median_low(kept)


def rows_of_ranks(
    worker: str,
    words: Sequence[str],
    task: dict[str, Any],
    processes: int,
    timeout_s: float,
    tell: Callable[[int], None] = lambda _rows: None,
    env: Mapping[str, str] | None = None,
) -> list[dict[str, Any]]:
    """Start the ranks, and return the results (JSON objects) that they print with `worker.tell`, in that order.

    Args:
        worker: the module that each rank runs.
        words: the first arguments of the module; the last argument is the path of `task` as JSON.
        task: what to measure.
        processes: number of ranks.
        timeout_s: time limit (s), after which all ranks are terminated.
        tell: called with the number of results so far.
        env: variables added to the environment of each rank.

    Raises MeasuringError, with the end of a rank's output, if that rank fails or times out.
    """
    rows: list[dict[str, Any]] = []

    def heard(_rank: int, line: str) -> None:
        if line.startswith(MARK):
            rows.append(json.loads(line.removeprefix(MARK)))
            tell(len(rows))

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "task.json")
        path.write_text(json.dumps(task))
        argv = [sys.executable, "-P", "-m", worker, *words, str(path)]
        done = launch.run(argv, processes, env=env, timeout_s=timeout_s, on_line=heard)
    if not done.ok:
        raise MeasuringError(f"a process failed\n{done.outputs[done.failed_rank or 0][-2000:]}")
    return rows


def measure(
    target: Target,
    devices: int,
    probes: Sequence[Probe] = (),
    plans: Sequence[Path] = (),
    *,
    steps: int = STEPS,
    window_s: float = 0.1,
    timeout_s: float = 1800.0,
    tell: Callable[[int, int], None] = lambda _done, _all: None,
) -> Measurement:
    """Measure `probes` and `plans` (paths) for `target` on `devices` devices of this machine. Raises MeasuringError.

    `steps` is the number of undisturbed steps of each plan, `window_s` the seconds for which a probe is repeated, and
    `timeout_s` the time limit (s). `tell` is called with the number of results so far and in all.
    """
    task = {
        "devices": devices,
        "window_s": window_s,
        "probes": [p.to_json() for p in probes],
        "plans": [str(p.absolute()) for p in plans],
        "steps": steps,
    }
    every = len(probes) + len(plans)
    processes = 1 if target == "xla" else devices
    rows = rows_of_ranks(
        "planc.trainer.measure.worker", (target,), task, processes, timeout_s, lambda done: tell(done, every)
    )
    seconds = [row["seconds"] for row in rows if "seconds" in row]
    trained = [row for row in rows if "plan" in row]
    measured = (MeasuredProbe(probe=p, seconds=s) for p, s in zip(probes, seconds, strict=True))
    return Measurement(
        tuple(measured),
        {row["plan"]: tuple(row["steps"]) for row in trained},
        {row["plan"]: row["peak_gib"] for row in trained},
        {row["plan"]: row["reserved_gib"] for row in trained},
        {row["plan"]: tuple(row["features"]) for row in trained},
        {row["plan"]: tuple(row["others"]) for row in trained},
    )
