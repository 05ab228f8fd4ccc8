"""The n-th call of a run's launcher or rank fails, for every n: what must be true afterwards.

A trial trains with saves on two devices, and makes one call of one process fail. Then:

- the command has ended, with a receipt and the right losses, or with a message and no traceback;
- no process is left, and every checkpoint that was told to be on the disk is there; all of them are whole;
- `--resume` ends well; its losses and its final tensors are those of a run that nothing happened to, to the bit;
- no half-written file is left where the run writes.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
from safetensors.numpy import load_file

import planc
from planc.diag import PlanError
from planc.trainer.checkpoint import directory as folders
from planc.trainer.preset.embed import embed
from planc.trainer.receipt.receipt import read_receipt
from tests.faults import AnyFault
from tests.faults.calls import ERRORS, NO_FAULT, Call, Fault, read_log
from tests.faults.lines import NO_LINE, LineFault
from tests.faults.sockets import NO_SOCKET, SocketFault

PLAN = """plan faulty
model     llama_micro
batch     4 x 16 tokens microbatch 1
cluster   2 x cpu_local
mesh      fsdp 2
use       fsdp over fsdp
compute   fp32
"""
PRESET = """[train]
steps = {steps}
lr = 1e-3
warmup_steps = 2
eval_batches = 0
log_every = 1
hang_s = 1200
[data]
source = "tokens"
path = "tokens.bin"
held_out = 0.1
[checkpoint]
folder = "kept"
every_steps = 1
keep = 2
"""
STEPS = 3
SCENARIOS = ("fresh", "resumed")
"""A run from its beginning, and one that goes back to step 1 of a folder with a later checkpoint and a half-written
one."""
SAVED = re.compile(r"^ *(\d+)  saved in", re.MULTILINE)
REFUSAL = re.compile(r"error\[E\d{4}\]|^planc( train)?: .", re.MULTILINE)
KEPT = re.compile(r"step-\d{8}(\.\d+)?|aside-step-.*|metrics\.jsonl|\.lock")


@dataclass
class Trial:
    """One planted fault: which call it struck, how the run ended, and what was wrong."""

    stack: str
    scenario: str
    who: str
    number: int
    error: str
    call: str = ""
    """The call that failed; empty when the run did not come to it."""
    ended: str = ""
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.stack} {self.scenario} {self.who} {self.number} {self.error}"

    @property
    def line(self) -> str:
        outcome = "; ".join(self.wrong) or "ok"
        return f"{self.name:<38} {self.call:<70} {self.ended:<12} {self.seconds:5.1f} s  {outcome}"


class Runner(Protocol):
    """How a run is made: in forks with a framework, or in this process with numpy."""

    def prepare(self, stack: str) -> None:
        """Called once before the first run."""

    def run(self, place: Place, words: Sequence[str], who: str, fault: AnyFault) -> tuple[int | None, str]:
        """Train; a call of the process `who` fails. The status, None if it does not end, and what was printed."""

    def learn(self, place: Place) -> None:
        """Called after the first run, at `place`."""

    def orphans(self) -> list[int]:
        """Processes that a run has left."""


class Site:
    """A preset, the folder of an interrupted run, and the outcome of a run that nothing happened to."""

    def __init__(self, root: Path, stack: str, runner: Runner, steps: int = STEPS) -> None:
        self.stack, self.root, self.runner, self.steps = stack, root, runner, steps
        shutil.rmtree(root, ignore_errors=True)
        self.template = root / "template"
        self.template.mkdir(parents=True)
        np.random.default_rng(1).integers(0, 134, 4000).astype("uint16").tofile(self.template / "tokens.bin")
        plan = self.template / "faulty.plan"
        plan.write_text(PLAN)
        preset = self.template / "run.toml"
        preset.write_text(PRESET.format(steps=steps))
        embed(planc.load(plan), plan, preset)
        plan.unlink()  # a preset needs no source, and a run that finds none saves the time to compile it again
        runner.prepare(stack)
        place = Place(self, root / "whole", "fresh")
        status, text = place.run()
        assert status == 0, text
        runner.learn(place)
        self.gone_on: set[str] = set()
        """States of the disk that runs with faults have left, and from which a run has gone on to the right end."""
        self.losses = list(read_receipt(place.receipt).losses)
        self.sums = sums(folders.stored_checkpoints(place.kept)[-1].path)
        self.interrupted = self._interrupted(Place(self, root / "interrupted", "fresh"))

    def _interrupted(self, place: Place) -> Path:
        """Checkpoints of steps 1 and 2, and a folder in which step 3 is half written."""
        status, text = place.run("--steps", "2")
        assert status == 0, text
        half = place.kept / f"{folders.WRITING}{3:08}-ended"
        half.mkdir()
        (half / "part-00000-00000.safetensors").write_bytes(b"half")
        return place.kept

    def counted(self, scenario: str) -> dict[str, list[Call]]:
        """The calls of each process in a run without a fault."""
        place = Place(self, self.root / "counted", scenario)
        status, text = place.run(*place.resume)
        assert status == 0, text
        return {log.stem.replace("-", " "): read_log(log) for log in sorted(place.logs.iterdir())}

    def lines(self, scenario: str) -> dict[str, dict[str, int]]:
        """How often each process runs each line of planc."""
        place = Place(self, self.root / "counted", scenario)
        status, text = place.run(*place.resume, who="all", fault=NO_LINE)
        assert status == 0, text
        return {log.stem.replace("-", " "): json.loads(log.read_text()) for log in sorted(place.logs.glob("*.lines"))}

    def sockets(self, scenario: str) -> dict[str, int]:
        """How many calls of sockets each process makes that makes any."""
        place = Place(self, self.root / "counted", scenario)
        status, text = place.run(*place.resume, who="all", fault=NO_SOCKET)
        assert status == 0, text
        found = {log.stem.replace("-", " "): json.loads(log.read_text()) for log in place.logs.glob("*.sockets")}
        return {who: calls for who, calls in sorted(found.items()) if calls}


class Place:
    """A fresh copy of the preset and of what else a scenario needs."""

    def __init__(self, site: Site, folder: Path, scenario: str) -> None:
        self.site, self.folder = site, folder
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(site.template, folder)
        self.kept, self.receipt, self.logs = folder / "kept", folder / "receipt.json", folder / "logs"
        self.preset = folder / "run.toml"
        self.logs.mkdir()
        (folder / "temporary").mkdir()
        self.environ = {"PLANC_CACHE": str(folder / "cache"), "TMPDIR": str(folder / "temporary")}
        self.resume: tuple[str, ...] = ()
        if scenario == "resumed":
            shutil.copytree(site.interrupted, self.kept)
            self.resume = ("--resume", "1")

    def left(self) -> str:
        """The state of the disk, as far as `--resume` looks at it: names and tensors."""
        names = sorted(p.relative_to(self.folder).as_posix() for p in self.kept.rglob("*"))
        metrics = self.kept / "metrics.jsonl"
        cut_short = metrics.exists() and metrics.stat().st_size > 0 and not metrics.read_bytes().endswith(b"\n")
        tensors = [sums(kept.path) for kept in folders.stored_checkpoints(self.kept)]
        caches = sorted(p.parent.name for p in (self.folder / "cache").rglob("*"))
        return json.dumps([re.sub(r"(writing|leaving)-\S+", r"\1", str(names)), cut_short, tensors, caches])

    def run(self, *more: str, who: str = "", fault: AnyFault = NO_FAULT) -> tuple[int | None, str]:
        """Train here: the status, None if it does not end in time, and all that was printed."""
        return self.site.runner.run(self, more, who, fault)


def sums(checkpoint: Path) -> dict[str, str]:
    """SHA-256 of each tensor's values, by file and name: the order of a header's keys is not the run's."""
    return {
        f"{file.name} {name}": hashlib.sha256(values.tobytes()).hexdigest()
        for file in sorted(checkpoint.glob("*.safetensors"))
        for name, values in load_file(file).items()
    }


def strike(site: Site, scenario: str, who: str, fault: AnyFault) -> Trial:
    """Run with this fault, look, go on without it, and look again."""
    trial, began = Trial(site.stack, scenario, who, fault.number, fault.error), time.monotonic()
    place = Place(site, site.root / "trial", scenario)
    status, text = place.run(*place.resume, who=who, fault=fault)
    trial.call = _struck(place, who, fault)
    judge(trial, place, status, text)
    if not trial.wrong and (left := place.left()) not in site.gone_on:
        _go_on(trial, place)
        if not trial.wrong:
            site.gone_on.add(left)
    trial.seconds = round(time.monotonic() - began, 2)
    return trial


def _struck(place: Place, who: str, fault: AnyFault) -> str:
    """The call or the line that failed; empty when the run did not come to it."""
    log = place.logs / who.replace(" ", "-")
    if isinstance(fault, SocketFault):
        cut = log.with_suffix(".sockets")
        name = cut.read_text() if cut.exists() else ""
        return f"{name} of a socket" if name.isidentifier() else ""
    if isinstance(fault, LineFault):
        noted = log.with_suffix(".lines")
        return f"no memory at {fault.line}" if noted.exists() and noted.read_text() == fault.line else ""
    calls = read_log(log.with_suffix(".calls"))
    if fault.number > len(calls):
        return ""
    call = calls[fault.number - 1]
    return f"{call.name} {call.about} ({call.place})"


def judge(trial: Trial, place: Place, status: int | None, text: str) -> None:
    """Note all that is wrong after the run with the fault."""
    trial.wrong += [f"process {pid} is left" for pid in place.site.runner.orphans()]
    found = REFUSAL.search(text)
    trial.ended = "went on" if status == 0 else (found[0].strip() if found else f"status {status}")
    if status is None:
        trial.wrong.append(f"it hung: {text[-300:]}")
    if "Traceback" in text:
        trial.wrong.append(f"a traceback: {text[-400:]}")
    elif status not in (None, 0) and (status not in (1, 2) or not found):
        trial.wrong.append(f"status {status} without a message: {text[-300:]}")
    look(trial, place, max(map(int, SAVED.findall(text)), default=0))
    if status == 0 and not place.receipt.exists():
        trial.wrong.append("it ended well without a receipt")
    if place.receipt.exists() and list(read_receipt(place.receipt).losses) != place.site.losses:
        trial.wrong.append("the receipt's losses differ")


def look(trial: Trial, place: Place, said: int) -> None:
    """The checkpoints of `place` are whole, none that was told is lost, and they are those of the right run."""
    stored = folders.stored_checkpoints(place.kept)
    if said and (not stored or stored[-1].step < said):
        trial.wrong.append(f"step {said} was saved, and the newest is {stored[-1].step if stored else 'none'}")
    for kept in stored:
        try:
            folders.verify(kept.path)
            losses = json.loads((kept.path / "history.json").read_text())["losses"]
            if losses != place.site.losses[: kept.step]:
                trial.wrong.append(f"the losses of step {kept.step} differ")
            if kept.step == place.site.steps and sums(kept.path) != place.site.sums:
                trial.wrong.append("the final tensors differ")
        except PlanError as error:
            trial.wrong.append(str(error.diagnostics[0].message))


def _go_on(trial: Trial, place: Place) -> None:
    """The run without a fault goes on from what is there to the right end, and leaves nothing half-written."""
    status, text = place.run("--resume")
    if status != 0:
        trial.wrong.append(f"--resume ended with {status}: {text[-300:]}")
        return
    complete(trial, place)


def complete(trial: Trial, place: Place) -> None:
    """A run that has come to its end has the right losses and tensors, and has left nothing half-written."""
    if list(read_receipt(place.receipt).losses) != place.site.losses:
        trial.wrong.append("the losses at the end differ")
    look(trial, place, place.site.steps)
    allowed = {"run.toml", "tokens.bin", "kept", "receipt.json", "logs", "temporary", "cache"}
    left = {path.name for path in place.folder.iterdir()} - allowed
    left |= {path.name for path in place.kept.iterdir() if not KEPT.fullmatch(path.name)}
    left |= {path.name for path in (place.folder / "cache").rglob("*") if path.name.startswith(".")}
    if left and not trial.call.startswith(("unlink", "rmdir", "remove")):
        trial.wrong.append(f"left behind: {', '.join(sorted(left))}")


def faults(counted: dict[str, list[Call]], seed: int, each_line_once: bool = False) -> Iterator[tuple[str, Fault]]:
    """Each call of each process, with one error after the other in turn; or only the last of each line of planc."""
    for who, calls in counted.items():
        last = {(call.name, call.place): number for number, call in enumerate(calls, 1)}
        for number, call in enumerate(calls, 1):
            kinds = ERRORS if call.name == "write" else ERRORS[:3]
            if not each_line_once or last[call.name, call.place] == number:
                yield who, Fault(number, kinds[(number + seed) % len(kinds)])
