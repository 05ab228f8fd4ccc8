"""`planc bench saves`: what training waits for a checkpoint, asynchronous beside synchronous, in one run.

Run as a module it is one rank: the tiny preset's model takes steps, and saves in turn one way and the other.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, cast

from planc.checks import check_plan
from planc.lowering import load_backend, lower_plan
from planc.trainer.preset.load import Preset, load_preset
from planc.trainer.run import launch

if TYPE_CHECKING:
    from planc.ir.session import Session
    from planc.ir.target import Target
    from planc.trainer.checkpoint.writer import Saver

MARK = "@saves "
PRESET = "presets/tiny.toml"


def measure(target: Target, runs: int, timeout_s: float = 600.0, preset: Path | None = None) -> dict[str, float]:
    """Median seconds on rank 0 over `runs` saves of each kind, measured in a launch of `preset` (None: the tiny one) on
    `target` that takes at most `timeout_s` seconds.

    Each key names one figure: the wait of training for either kind of save, and a step while one is written and while
    none is. Raises OSError with the end of a rank's output when that rank fails.
    """
    path = preset or _preset()
    plan = load_preset(path).plan
    with tempfile.TemporaryDirectory(prefix="planc-saves-") as folder:
        argv = [
            sys.executable,
            "-P",
            "-m",
            "tests.lab.measure.checkpoint_bench",
            target,
            str(runs),
            folder,
            str(path),
        ]
        # A rank finds `tests` where this process does: an installed planc does not hold it.
        found = {"PYTHONPATH": os.pathsep.join(sys.path)}
        done = launch.run(argv, launch.processes(plan, load_backend(target)), env=found, timeout_s=timeout_s)
    if not done.ok:
        raise OSError(f"a rank ended with status {done.returncode}: {done.outputs[done.failed_rank or 0][-500:]}")
    line = next(line for line in done.outputs[0].splitlines() if line.startswith(MARK))
    return cast("dict[str, float]", json.loads(line.removeprefix(MARK)))


def _preset() -> Path:
    return Path(str(files("planc.plans").joinpath(PRESET)))


def main(target: Target, runs: int, folder: Path, path: Path) -> None:
    from planc.ir.session import Settings
    from planc.trainer.checkpoint.writer import Saver, Where
    from planc.trainer.data.sources import source_of
    from planc.trainer.run.initial_weights import initial

    preset = load_preset(path)
    program = lower_plan(check_plan(preset.plan), target, version="installed")
    runtime = program.backend.runtime()
    runtime.prepare_environment(preset.plan.mesh.devices)
    session = runtime.start(program, Settings(), initial(preset.plan.model, 0))
    source = source_of(preset)
    slow = Saver(session, Where(folder / "sync", launch.ATTEMPT, 1, asynchronous=False, timeout_s=300))
    fast = Saver(session, replace(slow.where, folder=folder / "async", asynchronous=True))
    seen: dict[str, list[float]] = {"synchronous_s": [], "asynchronous_s": [], "step_s": [], "step_while_saving_s": []}

    def step(number: int) -> float:
        start = time.perf_counter()
        session.step(*source.batch(number), 1e-4)
        return time.perf_counter() - start

    for number in range(1, 2 * runs + 2, 2):  # the first round connects, compiles, and touches memory
        seen["step_s"].append(step(number))
        seen["synchronous_s"].append(_stall_s(session, slow, preset, number))
        seen["asynchronous_s"].append(_stall_s(session, fast, preset, number))
        seen["step_while_saving_s"].append(step(number + 1))
        fast.finish()
    if session.rank == 0:
        print(MARK + json.dumps({name: statistics.median(values[1:]) for name, values in seen.items()}), flush=True)
    session.any(False)  # nobody leaves while another still saves


def _stall_s(session: Session, saver: Saver, preset: Preset, number: int) -> float:
    """Seconds that this rank's training waits for a save after so many steps."""
    from planc.trainer.checkpoint.manager import manifest_of

    session.any(False)  # all ranks begin together
    start = time.perf_counter()
    saver.save(manifest_of(preset, "cuda", session, "", number), {})
    return time.perf_counter() - start


if __name__ == "__main__":
    main(cast("Target", sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4]))
    launch.leave(0)
