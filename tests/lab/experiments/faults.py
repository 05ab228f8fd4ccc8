"""Runs that are killed in a save, or of which a rank stops: nothing is lost, and nothing hangs."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from os import kill
from pathlib import Path

from planc.diag.errors import PlanError
from planc.diag.fast_dataclass import dataclass
from planc.trainer.measure.coordinator import MeasuringError
from tests.lab.experiments.experiment import Facts, Machine, plan_text
from tests.lab.experiments.presets import preset_of

PRESET = """[train]
lr = 1e-3
steps = {steps}
warmup_steps = 2
eval_batches = 0
log_every = 1
hang_s = {hang_s}
deterministic = true

[checkpoint]
folder = "kept"
every_steps = 2
keep = 3
"""
SAVED_LINE = re.compile(r"^ *(\d+)  saved in")
STEP_LINE = re.compile(r"^ *(\d+) +\d+\.\d+ +\d+\.\d+ ")
POLL_S = 0.001
TRIES = 8
"""Kills at most, until one falls into a save."""
ENDING_S = 30.0
"""Seconds in which a run that was found stuck must have ended all its ranks."""


def _preset(name: str, model: str, steps: int, hang_s: float, machine: Machine, folder: Path) -> Path:
    return preset_of(name, _plan(name, model, machine), PRESET.format(steps=steps, hang_s=hang_s), folder)


def _plan(name: str, model: str, machine: Machine) -> str:
    batch = f"{2 * machine.devices} x 64 tokens microbatch 1"
    return plan_text(name, model, batch, ("mesh fsdp {devices}", "use fsdp over fsdp"), machine)


class RunningTraining:
    """`planc train` as a process of its own, and what it prints."""

    def __init__(self, preset: Path, checkpoints: Path) -> None:
        words = ["train", str(preset), "--target", "cuda", "--checkpoint", str(checkpoints)]
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "planc.cli", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())

    def until(self, seen: Callable[[], bool], ends_s: float) -> bool:
        """Wait until `seen` is true; False when the run ends or it is `ends_s` of `time.monotonic` before."""
        while not seen():
            if self.process.poll() is not None or time.monotonic() > ends_s:
                return False
            time.sleep(POLL_S)
        return True

    def ranks(self) -> list[int]:
        """The ids of the processes that it has started (Linux)."""
        found: list[int] = []
        for task in Path(f"/proc/{self.process.pid}/task").glob("*/children"):
            with suppress(OSError):
                found += [int(pid) for pid in task.read_text().split()]
        return found

    def steps(self) -> int:
        """Number of steps that it has told."""
        return sum(bool(STEP_LINE.match(line)) for line in self.lines)

    def saved(self) -> int:
        """The newest step that it told was on the disk; 0 for none."""
        return max([int(m[1]) for line in self.lines if (m := SAVED_LINE.match(line))], default=0)

    def end(self) -> str:
        """Kill it if it still runs, and return the end of what it printed."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join(timeout=5)
        return "\n".join(self.lines)[-1500:]


def _alive(pid: int) -> bool:
    """True for a process that runs and is not only waiting to be counted out."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _left(pids: list[int], seconds: float) -> int:
    """The number of processes of `pids` that are still there after so many seconds at most."""
    ends = time.monotonic() + seconds
    while any(map(_alive, pids)) and time.monotonic() < ends:
        time.sleep(0.02)
    return sum(map(_alive, pids))


def _has_taken(run: RunningTraining, steps: int) -> bool:
    """True once a run has told so many steps."""
    return run.steps() >= steps


def _writes_another(run: RunningTraining, checkpoints: Path, writing: str) -> bool:
    """True while a run that has saved a checkpoint writes another one: into a folder whose name begins with
    `writing`."""
    return bool(run.saved()) and any(checkpoints.glob(f"{writing}*"))


@dataclass(frozen=True, kw_only=True)
class KilledInSave:
    """A run of `steps` steps is killed while it writes a checkpoint, and taken up again."""

    name: str
    title: str
    model: str
    steps: int = 12
    minimum_s: float = 90.0

    def inputs(self, machine: Machine) -> str:
        """The plan for `machine`, and the number of steps."""
        return f"{self.steps}\n{_plan(self.name, self.model, machine)}"

    def predict(self, machine: Machine, folder: Path) -> Facts:
        """Nothing is lost and every loss is the same to the bit; the preset for `machine` is written to `folder`."""
        _preset(self.name, self.model, self.steps, 0, machine, folder)
        return {"lost_steps": 0, "bit_equal": True, "processes_left": 0}

    def measure(self, machine: Machine, folder: Path, timeout_s: float) -> Facts:
        """The same of a run on `machine`, in at most `timeout_s` seconds, and whether the kill fell into a save.

        `folder` gets the preset and the checkpoints. Raises MeasuringError when a run fails of itself.
        """
        from planc.trainer.checkpoint.directory import WRITING, stored_checkpoints
        from planc.trainer.checkpoint.resume import NEWEST
        from planc.trainer.run.train import train

        ends = time.monotonic() + timeout_s
        preset = _preset(self.name, self.model, self.steps, 0, machine, folder)

        def trained(checkpoints: Path, resume: int | None) -> tuple[float | None, ...]:
            left_s = max(1.0, ends - time.monotonic())
            try:
                return train(preset, "cuda", checkpoint=checkpoints, resume=resume, timeout_s=left_s).losses
            except PlanError as error:
                raise MeasuringError(str(error)) from error

        whole = trained(folder / "whole", None)
        for number in range(1, TRIES + 1):
            checkpoints = folder / f"checkpoints_{number}"
            run = RunningTraining(preset, checkpoints)
            has_begun = partial(_writes_another, run, checkpoints, WRITING)
            has_hit = run.until(has_begun, ends)
            ranks, told = run.ranks(), run.saved()
            message = run.end()
            if not has_hit and time.monotonic() > ends:
                raise MeasuringError(f"not done in time\n{message}")
            half_written = any(checkpoints.glob(f"{WRITING}*"))
            if half_written:
                break
        stored = stored_checkpoints(checkpoints)
        left = _left(ranks, ENDING_S)
        resumed = trained(checkpoints, NEWEST)
        return {
            "killed_in_a_save": half_written,
            "kills": number,
            "told_step": told,
            "kept_step": stored[-1].step if stored else 0,
            "lost_steps": max(0, told - (stored[-1].step if stored else 0)),
            "bit_equal": resumed == whole,
            "processes_left": left,
        }


@dataclass(frozen=True, kw_only=True)
class StoppedRank:
    """The last rank of a run stops in the middle of it; the launcher's heartbeat must end the run, and say why."""

    name: str
    title: str
    model: str
    hang_s: float = 15.0
    minimum_s: float = 90.0

    def inputs(self, machine: Machine) -> str:
        """The plan for `machine`, and the limit (s)."""
        return f"{self.hang_s}\n{_plan(self.name, self.model, machine)}"

    def predict(self, machine: Machine, folder: Path) -> Facts:
        """The run ends in time, with a message that names the rank; the preset for `machine` is written to `folder`."""
        _preset(self.name, self.model, 10_000, self.hang_s, machine, folder)
        rank = machine.devices - 1
        return {"ends_within_s": self.hang_s + ENDING_S, "code": "E1026", "names_rank": rank, "processes_left": 0}

    def measure(self, machine: Machine, folder: Path, timeout_s: float) -> Facts:
        """The seconds until a run on `machine` ended, its message and what was left of it, in at most `timeout_s`
        seconds.

        `folder` gets the preset. Raises MeasuringError when the run ends before a rank is stopped.
        """
        ends = time.monotonic() + timeout_s
        run, hang_s = self._begun(machine, folder, ends)
        try:
            ranks = run.ranks()
            stopped = max(ranks, key=_rank_of)
            kill(stopped, signal.SIGSTOP)
            began = time.monotonic()
            has_ended = not run.until(lambda: False, min(ends, began + hang_s + ENDING_S))
            took_s, has_ended = time.monotonic() - began, has_ended and run.process.poll() is not None
            output = run.end()
        finally:
            run.end()
        message = diagnostic(output, "E1026")
        return {
            "ended": has_ended,
            "ended_s": took_s,
            "limit_s": hang_s,
            "code": "E1026" if message else "",
            "message": message,
            "names_rank": f"rank {machine.devices - 1}" in message,
            "processes_left": _left(ranks, ENDING_S),
        }

    def _begun(self, machine: Machine, folder: Path, ends_s: float) -> tuple[RunningTraining, float]:
        """A run that has taken two steps, and its limit (s): twice as long again where a busy machine is too slow for
        one, until `ends_s` of `time.monotonic`."""
        hang_s = self.hang_s
        while True:
            run = RunningTraining(
                _preset(self.name, self.model, 10_000, hang_s, machine, folder), folder / f"kept_{hang_s:g}"
            )
            try:
                if run.until(partial(_has_taken, run, 2), ends_s):
                    return run, hang_s
            except BaseException:
                run.end()
                raise
            output = run.end()
            hang_s *= 2
            if not diagnostic(output, "E1026") or time.monotonic() + hang_s > ends_s:
                raise MeasuringError(f"no second step\n{output}")


def diagnostic(output: str, code: str) -> str:
    """The lines of `output` from the diagnostic with this `code` on; empty without one."""
    begins = output.find(f"[{code}]")
    return output[begins:] if begins >= 0 else ""


def _rank_of(pid: int) -> int:
    """The rank of a process that planc's launcher has started; -1 for another one."""
    with suppress(OSError):
        for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if entry.startswith(b"RANK="):
                return int(entry.removeprefix(b"RANK="))
    return -1
