"""Measure CPU contention: the share of this machine's processor time that other processes use.

Linux counts the time of every processor in `/proc/stat`. Busy time that our own processes did not use belongs to other
processes, or to the host of a virtual machine (`steal`). On systems without that file the share is 0.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

from planc.ir.probe import Ranks

STAT = Path("/proc/stat")
CALM = 0.05
"""A window counts as undisturbed if other processes use at most this share of processor time."""

MIN_WINDOW_S = 0.25
"""Minimum length (s) of a window for a measurement: the counters have a resolution of 10 ms."""


class ContentionMeter:
    """Measures how much processor time other processes on this host use after the meter is created."""

    def __init__(self, stat: Path = STAT) -> None:
        self._stat = stat
        self._start_s = perf_counter()
        self._before_s = taken_s(stat)

    def others_share(self, own_s: float) -> float:
        """Return the share of processor time that other processes have used since the meter was created. This process
        used `own_s` seconds."""
        before, now = self._before_s, taken_s(self._stat)
        if before is None or now is None:
            return 0.0
        passed_s = perf_counter() - self._start_s
        if passed_s < MIN_WINDOW_S:
            return 0.0
        there_s = passed_s * (os.cpu_count() or 1)
        return min(1.0, max(0.0, now - before - own_s) / there_s)

    def share_beside(self, ranks: Ranks, own_s: float) -> float:
        """Return the mean over `ranks` of the share of processor time that processes outside the run used; 0 on
        accelerators."""
        if not ranks.on_host:
            return 0.0
        return ranks.sum(self.others_share(ranks.sum(own_s))) / ranks.count


def own_s(windows_s: Sequence[float], share: float) -> float:
    """Estimate the seconds that one call takes if no other process runs: the mean of the fastest series of calls, or
    the mean of all series times (1 - `share`) if that is less.

    `windows_s` holds the mean seconds of a call in each series; `share` is the share of processor time that other
    processes used meanwhile.
    """
    return min(min(windows_s), sum(windows_s) / len(windows_s) * (1 - share))


def taken_s(stat: Path = STAT) -> float | None:
    """Return the busy and stolen seconds of all processors since the machine started.

    `stat` is a file in the format of Linux' `/proc/stat`; None if it cannot be read.
    """
    try:
        line = stat.read_text().split("\n", 1)[0]
    except OSError:
        return None
    name, *ticks = line.split()
    assert name == "cpu", f"{stat} begins with {name}"
    user, nice, system, _idle, _waiting, irq, soft, stolen = (int(n) for n in ticks[:8])
    return (user + nice + system + irq + soft + stolen) / os.sysconf("SC_CLK_TCK")
