"""Runs of several processes of one JAX program, of which one is killed at a moment drawn uniformly over a run's time.

`python tests/xla/killed_hosts.py --kills 20 --processes 2` prints what became of each. The run is resumed after every
kill, and killed again, until one comes to its end: its losses and norms must be those of one process to the bit.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from planc.trainer.run.launch import Finished, run  # noqa: E402
from tests.faults.forked import children  # noqa: E402
from tests.xla_flags import QUICKLY_COMPILED  # noqa: E402

PRESET = ROOT / "plans" / "presets" / "tiny.toml"
WORKER = "planc.trainer.run.worker"
QUICKLY = {"XLA_FLAGS": QUICKLY_COMPILED}
STEPS, SAVED_EVERY = 8, 2
HANGS_S = 240.0
"""A launch that lasts longer hangs: a whole run takes some 10 s, on a busy machine several times that."""
ENDS_WITHIN_S = 60.0
"""Longest time from the kill of a process to the end of the launch."""


@dataclass
class Hosts:
    """A run of `processes` that share four devices, in `folder`."""

    processes: int
    folder: Path
    dice: random.Random
    found: Counter[str] = field(default_factory=Counter)
    """Number of times that each thing happened."""

    def __post_init__(self) -> None:
        plan, self.preset = self.folder / "tiny.plan", self.folder / "presets" / "tiny.toml"
        self.preset.parent.mkdir()
        plan.write_text((PRESET.parents[1] / plan.name).read_text())
        before, every, after = PRESET.read_text().partition("every_steps = ")
        self.preset.write_text(before + every + str(SAVED_EVERY) + after.lstrip("0"))

    def start(self, processes: int, *more: str, kill_after_s: float = 0.0) -> Finished:
        """One launch; with `kill_after_s` one of its processes is killed that long (s) after it began."""
        worker = [sys.executable, "-m", WORKER, "--preset", str(self.preset), "--target", "xla"]
        argv = [*worker, "--receipt", str(self.receipt(processes)), "--steps", str(STEPS), *more]
        struck: list[float] = []
        timer = threading.Timer(kill_after_s, self._kill, [struck, self.dice.randrange(processes)])
        if not kill_after_s:
            return run(argv, processes, env=QUICKLY, timeout_s=HANGS_S)
        timer.start()
        try:
            finished = run(argv, processes, env=QUICKLY, timeout_s=HANGS_S)
        finally:
            timer.cancel()
            timer.join()
        if struck:
            self.found["killed"] += 1
            self.found["not ended in time"] += time.monotonic() - struck[0] > ENDS_WITHIN_S
        self.found["processes left"] += len(_workers())
        return finished

    def receipt(self, processes: int) -> Path:
        return self.folder / f"{processes}.json"

    def _kill(self, struck: list[float], which: int) -> None:
        """Kill one of the workers, and put the moment into `struck`; none if they have ended."""
        with suppress(ProcessLookupError, IndexError):
            os.kill(_workers()[which], signal.SIGKILL)
            struck.append(time.monotonic())


def _workers() -> list[int]:
    """The workers of this process's launch that live, in the order in which they were started; no other children."""
    return sorted(pid for pid in children(os.getpid()) if _works(pid))


def _works(pid: int) -> bool:
    """True for a process that lives and runs `WORKER`: one that has ended has no words of its command left."""
    with suppress(OSError):
        return WORKER.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return False


def answer(hosts: Hosts, processes: int) -> tuple[Any, Any]:
    """Losses and norms of a run that came to its end."""
    told = json.loads(hosts.receipt(processes).read_text())
    return told["losses"], told["grad_norms"]


def campaign(kills: int, processes: int, folder: Path, seed: int = 0) -> Counter[str]:
    """Outcomes of so many `kills` of runs of `processes`: all counts but `killed` and `equal` are to be 0."""
    hosts = Hosts(processes, folder, random.Random(seed))
    assert hosts.start(1, "--checkpoint", str(folder / "one")).ok
    expected, saved = answer(hosts, 1), folder / "saved"
    began = time.monotonic()
    assert hosts.start(processes, "--checkpoint", str(saved)).ok
    whole_s = time.monotonic() - began
    shutil.rmtree(saved)
    while hosts.found["killed"] < kills or saved.exists():
        words = ("--checkpoint", str(saved), *(["--resume"] if any(saved.glob("step-*")) else []))
        last = hosts.found["killed"] >= kills
        moment_s = 0.0 if last else hosts.dice.uniform(0.02, 1.0) * whole_s
        before = hosts.found["killed"]
        finished = hosts.start(processes, *words, kill_after_s=moment_s)
        if finished.ok:
            right = answer(hosts, processes) == expected
            hosts.found["equal" if right else "wrong"] += 1
            shutil.rmtree(saved)
        elif finished.returncode == 124:
            hosts.found["hung"] += 1
        elif hosts.found["killed"] == before:
            hosts.found["refused"] += 1
            print(finished.outputs[finished.failed_rank or 0][-1500:], flush=True)
            shutil.rmtree(saved, ignore_errors=True)
        print(f"{moment_s:.1f} s of {whole_s:.1f}: status {finished.returncode}, {dict(hosts.found)}", flush=True)
    return hosts.found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = campaign(given.kills, given.processes, Path(folder), given.seed)
    print("ROW", json.dumps(found))
    return 0 if set(+found) <= {"killed", "equal"} else 1


if __name__ == "__main__":
    sys.exit(main())
