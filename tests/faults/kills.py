"""Runs that are killed at moments drawn uniformly over the wall-clock time that they take, in forks (`forked.py`).

A run is started, its launcher or a rank is killed, what is on the disk is looked at, and `--resume` starts it again, to
be killed at its own moment: until one comes to its end, whose losses and tensors must be those of a run that nothing
happened to, to the bit. Then another run begins.
"""

from __future__ import annotations

import os
import random
import re
import signal
import time
from contextlib import suppress
from dataclasses import asdict, dataclass

from planc.trainer.checkpoint import directory as folders
from tests.faults import forked, nth
from tests.faults.forked import Forks
from tests.faults.nth import Place, Site, Trial
from tests.faults.sockets import ERRORS as SOCKET_ERRORS

STEP = re.compile(r"^ *\d+ +\d+\.\d+ +\d+\.\d+ ", re.MULTILINE)
MEASURE_EVERY = 25
"""Kills after which the time of a whole run is measured again: other work on the machine changes it."""


@dataclass
class Kill(Trial):
    """A kill. `error` is the signal's name, `call` what the run was doing, `number` counts the kills."""

    share: float = 0.0
    """The moment as a share of the time that this start would have taken."""
    steps: int = 0
    """Steps told before it."""
    inside_save: bool = False
    struck: bool = True
    """False when the run ended before its moment."""


class Chain:
    """Starts of one run after the other, each killed."""

    def __init__(self, site: Site, forks: Forks, dice: random.Random) -> None:
        self.site, self.dice, self._forks = site, dice, forks
        self.place: Place | None = None
        self._kills = 0
        self._measure()

    def _measure(self) -> None:
        """Time a whole run: how long it takes, and the share until its first step."""
        process = self._forks.start(Place(self.site, self.site.root / "measured", "fresh"), ())
        began = time.monotonic()
        text, first_s = "", 0.0
        while process.poll() is None:
            text += process.printed()
            first_s = first_s or (time.monotonic() - began if STEP.search(text) else 0.0)
            time.sleep(0.005)
        assert process.returncode == 0, text
        process.stdout.close()
        self.whole_s = time.monotonic() - began
        self.start_share = min(first_s / self.whole_s, 0.95) if first_s else 0.5

    def next(self) -> Kill:
        """One start and its kill, and everything that must be true afterwards."""
        if self._kills % MEASURE_EVERY == MEASURE_EVERY - 1:
            self._measure()
        self._kills += 1
        if self.place is None:
            self.place = Place(self.site, self.site.root / "chain", "fresh")
        place, dice = self.place, self.dice
        stored = folders.stored_checkpoints(place.kept)
        left = 1 - (stored[-1].step if stored else 0) / self.site.steps
        kill = Kill(self.site.stack, "resumed" if stored else "fresh", "", self._kills, "SIGKILL", share=dice.random())
        expected_s = self.whole_s * (self.start_share + (1 - self.start_share) * left)
        began = time.monotonic()
        process = self._forks.start(place, ("--resume",))
        before = set(place.kept.glob(f"{folders.WRITING}*"))
        text = ""
        while time.monotonic() < began + kill.share * expected_s and process.poll() is None:
            text += process.printed()
            time.sleep(0.002)
        kill.struck = process.poll() is None
        if kill.struck:
            whom = dice.choice([process.pid, *forked.children(process.pid)])
            kill.inside_save = bool(set(place.kept.glob(f"{folders.WRITING}*")) - before)
            with suppress(ProcessLookupError):
                os.kill(whom, signal.SIGKILL)
            kill.who = "launcher" if whom == process.pid else "rank"
        status, rest = forked.ended(process)
        self._judge(kill, place, status, text + rest)
        kill.seconds = round(time.monotonic() - began, 2)
        return kill

    def _judge(self, kill: Kill, place: Place, status: int | None, text: str) -> None:
        kill.wrong += [f"process {pid} is left" for pid in self._forks.orphans()]
        kill.steps = len(STEP.findall(text))
        kill.ended = f"status {status}"
        if status is None:
            kill.wrong.append(f"it hung: {text[-300:]}")
        elif status not in ((0, 1, -signal.SIGKILL) if kill.struck else (0,)):
            kill.wrong.append(f"status {status}: {text[-300:]}")
        nth.look(kill, place, max(map(int, nth.SAVED.findall(text)), default=0))
        if status == 0:
            nth.complete(kill, place)
            self.place = None
        if kill.wrong:
            self.place = None


def as_json(trial: Trial) -> dict[str, object]:
    """The trial as an object of its state file."""
    if isinstance(trial, Kill):
        kind = "moment" if trial.error == "moment" else "kill"
    elif trial.error == "MemoryError":
        kind = "memory"
    else:
        kind = "socket" if trial.error in SOCKET_ERRORS else "nth"
    return {"kind": kind, **asdict(trial)}
