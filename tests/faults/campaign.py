"""Runs that are killed, stopped, asked to end and damaged at random moments, and what must be true after each.

A trial starts `planc train --resume` on a folder, does one thing to it, and then looks:

- the command has ended, in time, with the status that belongs to the fault, and left no process behind;
- every checkpoint that was told to be on the disk is there, unless newer ones took its place, and is whole;
- the losses in the newest checkpoint are those of a run that nothing happened to, to the bit.
"""

from __future__ import annotations

import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import planc
from planc.diag import PlanError
from planc.trainer.checkpoint import directory as folders
from planc.trainer.checkpoint.manager import read_history
from planc.trainer.checkpoint.resume import NEWEST, start_of
from planc.trainer.data.sources import source_of
from planc.trainer.preset.embed import embed
from planc.trainer.preset.load import load_preset

PLAN = """plan faulty
model     llama_tiny
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
hang_s = 60
[data]
max_bytes = 65536
[checkpoint]
folder = "kept"
every_steps = 2
"""
STEPS = 60
ENDS_WITHIN_S = 300.0
SAVE_TAKES_S = 0.06
"""About what writing these checkpoints takes: a kill falls uniformly into it."""
SAVED_LINE = re.compile(r"^ *(\d+)  saved in")
STEP_LINE = re.compile(r"^ *(\d+) +\d+\.\d+ +\d+\.\d+ ")


@dataclass
class Trial:
    """One planted failure: what was done, and what was wrong afterwards."""

    stack: str
    fault: str
    moment: str = ""
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def line(self) -> str:
        return f"{self.stack:<5} {self.fault:<12} {self.moment:<46} {self.seconds:5.1f} s  " + (
            "; ".join(self.wrong) or "ok"
        )


class Site:
    """A preset, its checkpoints, and the losses of a run that nothing happened to."""

    def __init__(self, root: Path, stack: str, steps: int = STEPS) -> None:
        self.stack, self.steps = stack, steps
        root.mkdir(parents=True, exist_ok=True)
        (root / "faulty.plan").write_text(PLAN)
        self.preset = root / "run.toml"
        self.preset.write_text(PRESET.format(steps=steps))
        embed(planc.load(root / "faulty.plan"), root / "faulty.plan", self.preset)
        self.kept = root / "kept"
        receipt = root / "whole.json"
        began = time.monotonic()
        run = Run(self, "--checkpoint", str(root / "whole"), "--receipt", str(receipt), resume=False)
        assert run.ended() == 0, run.text()
        self.whole_s = time.monotonic() - began
        self.losses = json.loads(receipt.read_text())["losses"]

    def last(self) -> folders.StoredCheckpoint | None:
        found = folders.stored_checkpoints(self.kept)
        return found[-1] if found else None

    def files(self) -> dict[Path, int]:
        """The files of its checkpoints, and when each was written."""
        return {p: p.stat().st_mtime_ns for kept in folders.stored_checkpoints(self.kept) for p in kept.path.iterdir()}

    def half_done(self) -> set[Path]:
        """Folders that are no checkpoint yet."""
        return set(self.kept.glob(f"{folders.WRITING}*"))

    def refusal(self) -> str:
        """The code with which `--resume` is refused; empty when it is not."""
        preset = load_preset(self.preset)
        try:
            start_of(preset, NEWEST, source_of(preset).sha256)
        except PlanError as error:
            return error.diagnostics[0].code
        return ""


class Run:
    """`planc train --resume` as a process, and what it prints."""

    def __init__(self, site: Site, *more: str, resume: bool = True, most_bytes: int = 0) -> None:
        words = [
            "-m",
            "planc.cli",
            "train",
            str(site.preset),
            "--target",
            site.stack,
            *(["--resume"] if resume else []),
        ]
        self.process = subprocess.Popen(
            [sys.executable, *words, *more],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=(lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes)))
            if most_bytes
            else None,
        )
        self._site, self._left = site, site.half_done()
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())

    def text(self) -> str:
        return "\n".join(self.lines)

    def ended(self) -> int | None:
        """Its status; None if it does not end in time."""
        try:
            self.process.wait(ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            return None
        self._reader.join(5)
        return self.process.returncode

    def until(self, seen: Callable[[], bool], limit_s: float = ENDS_WITHIN_S) -> bool:
        """Wait until something is seen; False if the run ends before, or it takes too long."""
        limit = time.monotonic() + limit_s
        while not seen():
            if self.process.poll() is not None or time.monotonic() > limit:
                return False
            time.sleep(0.002)
        return True

    def ranks(self) -> list[int]:
        """Processes that it has started (Linux)."""
        found: list[int] = []
        for task in Path(f"/proc/{self.process.pid}/task").glob("*/children"):
            found += [int(pid) for pid in task.read_text().split()]
        return found

    def hold(self) -> None:
        """Stop all its ranks where they are."""
        for pid in self.ranks():
            send(pid, signal.SIGSTOP)

    def let_go(self, ranks: list[int] | None = None) -> None:
        """Let stopped ranks go on."""
        for pid in self.ranks() if ranks is None else ranks:
            send(pid, signal.SIGCONT)

    def steps(self) -> int:
        """Steps that it has said."""
        return sum(bool(STEP_LINE.match(line)) for line in self.lines)

    def writing(self) -> bool:
        """True if a checkpoint of its own is half written now."""
        return bool(self._site.half_done() - self._left)

    def saves(self) -> int:
        """Checkpoints that it has said were on the disk."""
        return sum(bool(SAVED_LINE.match(line)) for line in self.lines)

    def saved(self) -> int:
        """The newest step that it said was on the disk; 0 for none."""
        return max([int(m[1]) for line in self.lines if (m := SAVED_LINE.match(line))], default=0)


def alive(pid: int) -> bool:
    """Running, and not only waiting to be counted out."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def judge(site: Site, trial: Trial, run: Run, ranks: list[int], expected: set[int]) -> None:
    """Everything that must be true after a run has ended."""
    status = run.ended()
    if status is None:
        run.process.kill()
        trial.wrong.append("it hung")
    elif status not in expected:
        trial.wrong.append(f"status {status}: {run.text()[-300:]}")
    limit = time.monotonic() + 15
    while (left := [pid for pid in ranks if alive(pid)]) and time.monotonic() < limit:
        time.sleep(0.02)
    trial.wrong += [f"process {pid} is left" for pid in left]
    look(site, trial, run.saved())


def look(site: Site, trial: Trial, said: int) -> None:
    """The checkpoints are whole, none that was told is lost, and the losses are the right ones."""
    found = folders.stored_checkpoints(site.kept)
    if said and (not found or found[-1].step < said):
        trial.wrong.append(f"step {said} was saved, and the newest is {found[-1].step if found else 'none'}")
    for kept in found:
        try:
            folders.verify(kept.path)
        except PlanError as error:
            trial.wrong.append(str(error.diagnostics[0].message))
            return
    if found:
        losses = read_history(found[-1].path).losses
        if losses != site.losses[: found[-1].step]:
            trial.wrong.append("the losses are not those of the whole run")


def in_step(run: Run, dice: random.Random) -> str:
    """A moment after some step: steps of these runs are mostly collectives and their computing."""
    steps = dice.randrange(1, 6)
    run.until(lambda: run.steps() >= steps)
    time.sleep(dice.uniform(0, 0.3))
    return f"after step {run.steps()} of this start"


def at_any_time(run: Run, dice: random.Random, site: Site) -> str:
    """A moment uniform over the wall-clock time that a whole run takes: imports, meeting, steps, saves, the end."""
    after_s = dice.uniform(0, site.whole_s)
    run.until(lambda: False, after_s)
    inside = ", inside a save" if run.writing() else ""
    return f"{after_s:.2f} s after the start, {run.steps()} steps{inside}"


def in_save(run: Run, dice: random.Random) -> str:
    """While a checkpoint is half written, at any of its stages. The ranks are held: what is seen stays true."""
    saves = dice.randrange(0, 3)
    while run.until(lambda: run.saves() >= saves and run.writing()):
        time.sleep(dice.uniform(0, SAVE_TAKES_S))
        run.hold()
        if run.writing():
            return f"inside a save, after step {run.steps()} of this start"
        run.let_go()
    return "after the last save"


def in_collective(run: Run, dice: random.Random) -> str:
    """A rank is held; the others are seen to stand still, waiting for it in a collective."""
    for _ in range(20):
        where = in_step(run, dice)
        ranks = run.ranks()
        if len(ranks) < 2:
            return where
        held = dice.choice(ranks)
        send(held, signal.SIGSTOP)
        if all(stands_still(pid) for pid in ranks if pid != held):
            return f"in a collective, {where}"
        send(held, signal.SIGCONT)
    return where


def stands_still(pid: int) -> bool:
    """True if the main thread of a process gets to sleep within two seconds and uses no time for a while (Linux)."""
    limit = time.monotonic() + 2
    while time.monotonic() < limit:
        before = _main_thread(pid)
        time.sleep(0.25)
        if before[0] == "S" and _main_thread(pid) == before:
            return True
    return False


def _main_thread(pid: int) -> tuple[str, str, str]:
    """(state, user ticks, system ticks)."""
    try:
        fields = Path(f"/proc/{pid}/task/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "gone", "", ""
    return fields[0], fields[11], fields[12]


def send(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def kill(site: Site, dice: random.Random, moment: str) -> Trial:
    """SIGKILL to the launcher or a rank at a moment of this kind."""
    trial, began = Trial(site.stack, f"kill {moment}"), time.monotonic()
    run = Run(site)
    match moment:
        case "any":
            trial.moment = at_any_time(run, dice, site)
        case "save":
            trial.moment = in_save(run, dice)
        case "collective":
            trial.moment = in_collective(run, dice)
        case _:
            trial.moment = in_step(run, dice)
    ranks = sorted(run.ranks())
    done = run.process.poll() is not None
    whom = dice.choice([run.process.pid, *ranks])
    send(whom, signal.SIGKILL)
    run.let_go(ranks)
    trial.moment += ", too late" if done else (": the launcher" if whom == run.process.pid else ": a rank")
    judge(site, trial, run, ranks, {0} if done else {1, -signal.SIGKILL, 0})
    trial.seconds = time.monotonic() - began
    return trial


def term(site: Site, dice: random.Random) -> Trial:
    """SIGTERM to the launcher: the state is saved, and the status says so."""
    trial, began = Trial(site.stack, "term"), time.monotonic()
    run = Run(site)
    trial.moment = in_step(run, dice)
    ranks, done, steps = run.ranks(), run.process.poll() is not None, run.steps()
    before = site.last()
    send(run.process.pid, signal.SIGTERM)
    judge(site, trial, run, ranks, {0} if done else {75, 0})
    after = site.last()
    if run.process.returncode == 75 and steps and (after is None or (before and after.step < before.step)):
        trial.wrong.append("nothing was saved")
    trial.seconds = time.monotonic() - began
    return trial


def hang(site: Site, dice: random.Random) -> Trial:
    """A rank is stopped for good: the run is ended, and the rank is named."""
    trial, began = Trial(site.stack, "hang"), time.monotonic()
    run = Run(site)
    trial.moment = in_step(run, dice)
    ranks = sorted(run.ranks())
    if ranks:
        victim = dice.randrange(len(ranks))
        send(ranks[victim], signal.SIGSTOP)
        trial.moment += f", rank {victim}"
        judge(site, trial, run, ranks, {1, 0})
        if run.process.returncode == 1 and not re.search(rf"rank\s+{victim}\s+has\s+been\s+silent", run.text()):
            trial.wrong.append("the rank is not named: " + run.text()[-300:])
    trial.seconds = time.monotonic() - began
    return trial


def full_disk(site: Site, _dice: random.Random) -> Trial:
    """No file may grow beyond a megabyte: saves fail, are told, and nothing that is there is touched."""
    trial, began = Trial(site.stack, "full disk"), time.monotonic()
    before = site.files()
    last = site.last()
    run = Run(site, "--steps", str((last.step if last else 0) + 3), most_bytes=1 << 20)
    ranks = run.ranks()
    judge(site, trial, run, ranks, {1})
    if site.files() != before:
        trial.wrong.append("a checkpoint was touched")
    if "E1025" not in run.text() or "not saved" not in run.text():
        trial.wrong.append("the failed save was not told: " + run.text()[-300:])
    trial.seconds = time.monotonic() - began
    return trial


def damage(site: Site, dice: random.Random) -> Trial:
    """The newest checkpoint is cut short, loses a file or has a bit turned: it is refused, and put right again."""
    last = site.last()
    assert last is not None
    path = dice.choice(sorted(p for p in last.path.iterdir() if p.is_file()))
    data = path.read_bytes()
    how = dice.choice(["bit", "cut", "gone"])
    at = dice.randrange(len(data))
    trial = Trial(site.stack, "damage", f"{how} {path.name} at {at} of step {last.step}")
    if how == "bit":
        path.write_bytes(data[:at] + bytes([data[at] ^ (1 << dice.randrange(8))]) + data[at + 1 :])
    elif how == "cut":
        os.truncate(path, at)
    else:
        path.unlink()
    try:
        if (code := site.refusal()) not in ("E1019", "E1021", "E1022"):
            trial.wrong.append(f"it was {'refused with ' + code if code else 'taken for whole'}")
        whole = [k for k in folders.stored_checkpoints(site.kept) if k.path != last.path]
        if whole and folders.newest_whole(site.kept)[0] != whole[-1]:
            trial.wrong.append("the one before it was not found")
    finally:
        path.write_bytes(data)
    if site.refusal():
        trial.wrong.append("it is refused after it was put right")
    return trial


def begin_again(site: Site) -> None:
    """A finished run leaves nothing to interrupt: the next trial starts from the first step."""
    last = site.last()
    if last is not None and last.step >= site.steps - 6:
        shutil.rmtree(site.kept)


def finish(site: Site) -> Trial:
    """The run goes on to its end: all losses are those of the run that nothing happened to."""
    trial, began = Trial(site.stack, "finish"), time.monotonic()
    receipt = site.preset.with_suffix(".json")
    run = Run(site, "--receipt", str(receipt))
    judge(site, trial, run, run.ranks(), {0})
    if receipt.exists() and json.loads(receipt.read_text())["losses"] != site.losses:
        trial.wrong.append("the receipt's losses differ")
    trial.seconds = time.monotonic() - began
    return trial
