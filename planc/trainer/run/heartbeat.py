"""Heartbeats of the ranks, and the watchdog that names a stalled rank.

A thread of each rank writes a heartbeat every second. A rank that is stopped, or whose interpreter is blocked, sends
none. Ranks that wait in a collective keep sending heartbeats; the rank that they wait for has completed fewer phases,
or is the only one at another line of the code.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from planc.trainer.telemetry.events import marked

MARK = "@heartbeat "
EVERY_S = 1.0


@dataclass(frozen=True)
class Heartbeat:
    """One heartbeat. `phases` is the number of phases of the loop that the rank has started, `doing` the name of the
    current phase, and `line` the current line of the code."""

    phases: int
    doing: str
    line: str


class HeartbeatSender:
    """Sends heartbeats of a rank. The loop calls `now` at the start of each phase."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._phases, self._doing = 0, "start"
        self._main = threading.main_thread().ident or 0
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()

    def now(self, doing: str) -> None:
        """Start a phase of the loop. `doing` is its name, which the launcher prints if the rank stalls in it."""
        self._phases, self._doing = self._phases + 1, doing

    def _beat(self) -> None:
        while True:
            self._write(MARK + json.dumps(asdict(Heartbeat(self._phases, self._doing, _line(self._main)))))
            time.sleep(EVERY_S)


def _line(thread: int) -> str:
    """Return the line of Python code that a thread is executing."""
    frame = sys._current_frames().get(thread)
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}" if frame else "its end"


class Watchdog:
    """Records in the launcher the last heartbeat of each rank, when it arrived, and when the rank last made
    progress."""

    def __init__(self, processes: int, longest_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._longest_s, self._clock = longest_s, clock
        self._received_s = dict.fromkeys(range(processes), clock())
        self._progressed_s = dict.fromkeys(range(processes), clock())
        self._beats: dict[int, Heartbeat] = {}

    def receive(self, rank: int, line: str) -> bool:
        """Read a `line` of the output of `rank`; True if it was a heartbeat."""
        values = marked(line, MARK)
        if values is None:
            return False
        beat, now = Heartbeat(**values), self._clock()
        self._received_s[rank] = now
        before = self._beats.get(rank)
        starting = before is not None and before.phases == 0 and before.line != beat.line  # it imports, it fills
        if before is None or beat.phases != before.phases or starting:
            self._progressed_s[rank] = now
        self._beats[rank] = beat
        return True

    def stuck(self) -> tuple[int, str] | None:
        """Return the rank that the other ranks wait for, and its state, if no rank has made progress for too long; else
        None."""
        now = self._clock()
        if now - max(self._progressed_s.values()) <= self._longest_s:
            return None
        rank, why = self._stuck_rank(now)
        return rank, f"no rank has made progress for {self._longest_s:g} s; {why}"

    def _stuck_rank(self, now: float) -> tuple[int, str]:
        silent = [r for r in self._received_s if now - self._received_s[r] > max(5 * EVERY_S, self._longest_s / 2)]
        if silent:
            quiet_s = now - self._received_s[silent[0]]
            return silent[0], f"rank {silent[0]} has been silent for {quiet_s:.0f} s ({self._last_activity(silent[0])})"
        behind = min(self._beats, key=lambda r: self._beats[r].phases)
        if self._beats[behind].phases < max(b.phases for b in self._beats.values()):
            return behind, f"the others wait for rank {behind} ({self._last_activity(behind)})"
        places = Counter(b.line for b in self._beats.values())
        alone = [r for r, b in self._beats.items() if places[b.line] == 1]
        odd = alone[0] if len(alone) == 1 else 0
        return odd, "; ".join(f"rank {r}: {self._last_activity(r)}" for r in sorted(self._beats))

    def _last_activity(self, rank: int) -> str:
        beat = self._beats.get(rank)
        return f"{beat.doing}, {beat.line}" if beat else "it has not said anything"
