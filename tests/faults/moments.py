"""Runs that are struck at a moment of their own making: in a load, in a save, in a step; and whose disk fills up.

The starts are a chain, as in `kills.py`: what one has left is what the next goes on from, until one comes to its end
with the losses and tensors of a run that nothing happened to. A load and a save say when they begin, and their disk is
slow, so that a strike falls into them. Checkpoints lie on a file system of their own (tmpfs, as root), which can be
full; a read-only one comes above it.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from planc.trainer.checkpoint import directory as folders
from planc.trainer.checkpoint.tensor_files import Reader
from tests.faults import forked, nth
from tests.faults.forked import Forks
from tests.faults.kills import STEP, Kill
from tests.faults.nth import Place, Site

WHERE, WHOM = ("step", "save", "load", "rebalance"), ("rank", "launcher", "all")
DISK = ("full disk", "read-only", "slow disk")
DEEDS = (*(f"{whom} in a {where}" for where in WHERE for whom in WHOM), *DISK, "stopped", "paused")
"""Strikes: who is killed where; the disk; a rank that is stopped for longer than `hang_s`, or less."""
ROOM_BYTES, HANG_S, SLOW_S = 64 << 20, 5, 0.06
"""Size of the file system; `hang_s` of a run with a stopped rank; delay of each file of a slow disk, above a step's."""
CODE = re.compile(r"error\[E\d{4}\]")


@dataclass(frozen=True)
class Slow:
    """Within a process, each file that is synced or opened to be read takes longer, and a file in `logs` says so."""

    logs: Path

    @contextmanager
    def __call__(self, who: str) -> Iterator[None]:
        sync, first = os.fsync, Reader.__init__

        def slow_sync(handle: Any) -> None:
            (self.logs / "save").touch()
            time.sleep(SLOW_S)
            sync(handle)

        def slow_load(reader: Reader, *given: Any) -> None:
            (self.logs / "load").touch()
            time.sleep(SLOW_S)
            first(reader, *given)

        changed = pytest.MonkeyPatch()
        changed.setattr(os, "fsync", slow_sync)
        changed.setattr(Reader, "__init__", slow_load)
        try:
            yield
        finally:
            changed.undo()


def mounted(folder: Path, size_bytes: int = ROOM_BYTES, *more: str) -> bool:
    """Mount a file system of this size on `folder`, or change the one that is there. False where that is refused."""
    words = ["mount", "-t", "tmpfs", "-o", ",".join((f"size={size_bytes}", *more)), "tmpfs", str(folder)]
    return subprocess.run(words, capture_output=True).returncode == 0


class Moments:
    """Starts of one run after the other, each struck in one of the ways of DEEDS, in turn."""

    def __init__(self, site: Site, forks: Forks, dice: random.Random, done: int) -> None:
        self._site, self._forks, self._dice, self._done = site, forks, dice, done
        self._place: Place | None = None

    def close(self) -> None:
        """Let the file system go."""
        if self._place is not None:
            subprocess.run(["umount", "-l", self._place.kept], capture_output=True)

    def next(self) -> Kill:
        """One start, what is done to it, and everything that must be true afterwards."""
        deed = DEEDS[self._done % len(DEEDS)]
        self._done += 1
        if self._place is None:
            self._begin()
        place = self._place
        assert place is not None
        there = folders.stored_checkpoints(place.kept)
        if not there and ("load" in deed or "rebalance" in deed or deed in DISK):
            self._run(place, "--steps", "2")
            there = folders.stored_checkpoints(place.kept)
        trial = Kill(self._site.stack, "resumed" if there else "fresh", deed, self._done, "moment")
        began = time.monotonic()
        self._prepare(place, deed)
        words = ("--resume", "--devices", "1") if "rebalance" in deed else ("--resume",)
        process = self._forks.start(place, words, plant=Slow(place.logs))
        text = self._strike(trial, place, process, deed)
        status, rest = forked.ended(process, 120)
        self._undo(trial, place, deed)
        self._judge(trial, place, deed, status, text + rest)
        trial.seconds = round(time.monotonic() - began, 2)
        return trial

    def _begin(self) -> None:
        self._place = place = Place(self._site, self._site.root / "moments", "fresh")
        text = place.preset.read_text().replace("[checkpoint]\n", '[checkpoint]\nelastic = "fsdp"\n')
        place.preset.write_text(text)
        place.kept.mkdir()
        self._own_disk = mounted(place.kept)

    def _run(self, place: Place, *more: str) -> None:
        status, text = place.run("--resume", *more)
        assert status == 0, text

    def _prepare(self, place: Place, deed: str) -> None:
        for name in ("save", "load"):
            (place.logs / name).unlink(missing_ok=True)
        if deed == "full disk" and self._own_disk:
            about = os.statvfs(place.kept)
            used = (about.f_blocks - about.f_bfree) * about.f_frsize
            mounted(place.kept, used + self._dice.choice((4096, 20_000, 60_000)), "remount")
        if deed == "stopped":
            place.preset.write_text(place.preset.read_text().replace("hang_s = 1200", f"hang_s = {HANG_S}"))

    def _undo(self, trial: Kill, place: Place, deed: str) -> None:
        if deed == "full disk" and self._own_disk:
            mounted(place.kept, ROOM_BYTES, "remount")
        if deed == "read-only" and trial.struck:
            subprocess.run(["umount", "-l", place.kept], capture_output=True)
        if deed == "stopped":
            place.preset.write_text(place.preset.read_text().replace(f"hang_s = {HANG_S}", "hang_s = 1200"))

    def _strike(self, trial: Kill, place: Place, process: forked.Forked, deed: str) -> str:
        """Wait for the moment, and strike. Returns what was printed until then."""
        where, text = deed.rpartition(" ")[2], ""
        steps = self._dice.randrange(1, 4)
        limit = time.monotonic() + 100
        while process.poll() is None and time.monotonic() < limit:
            text += process.printed()
            begun = where in ("load", "rebalance") and (place.logs / "load").exists()
            begun |= where == "save" and (place.logs / "save").exists()
            if begun or (where not in ("load", "rebalance", "save") and len(STEP.findall(text)) >= steps):
                break
            time.sleep(0.002)
        time.sleep(self._dice.uniform(0, SLOW_S))
        trial.steps = len(STEP.findall(text))
        ranks = forked.children(process.pid)
        trial.struck = process.poll() is None and (bool(ranks) or deed in DISK)
        trial.call, trial.inside_save = deed, where == "save"
        if not trial.struck:
            return text
        if deed == "read-only":
            trial.struck = self._own_disk and mounted(place.kept, ROOM_BYTES, "ro")  # above what is there
        elif deed in ("stopped", "paused"):
            rank = self._dice.choice(ranks)
            os.kill(rank, signal.SIGSTOP)
            if deed == "paused":
                time.sleep(self._dice.uniform(0.5, 3))
                os.kill(rank, signal.SIGCONT)
        elif deed not in DISK:
            whom = deed.partition(" ")[0]
            everyone = {"rank": [self._dice.choice(ranks)], "launcher": [process.pid], "all": [process.pid, *ranks]}
            for pid in everyone[whom]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        return text

    def _judge(self, trial: Kill, place: Place, deed: str, status: int | None, text: str) -> None:
        trial.wrong += [f"process {pid} is left" for pid in self._forks.orphans()]
        code = CODE.search(text)
        trial.ended = f"status {status}" + (f" {code[0][6:-1]}" if code else "")
        killed = deed.partition(" ")[0] in ("launcher", "all") and "in a" in deed
        if status is None:
            trial.wrong.append(f"it hung: {text[-300:]}")
        elif "Traceback" in text:
            trial.wrong.append(f"a traceback: {text[-600:]}")
        elif status not in ((-signal.SIGKILL, 0) if killed else (0, 1)):
            trial.wrong.append(f"status {status}: {text[-300:]}")
        elif status == 1 and code is None:
            trial.wrong.append(f"no code: {text[-300:]}")
        elif trial.struck and deed == "stopped" and "E1026" not in trial.ended:
            trial.wrong.append(f"the rank is not named: {text[-300:]}")
        elif deed in ("slow disk", "paused") and status != 0:
            trial.wrong.append(f"status {status}: {text[-300:]}")
        nth.look(trial, place, max(map(int, nth.SAVED.findall(text)), default=0))
        if status == 0 and "rebalance" not in deed:
            nth.complete(trial, place)
        if status == 0 or trial.wrong:
            self.close()
            self._place = None
