"""How much of this machine's processors other work had meanwhile: what was timed then took longer for it.

Linux counts the time of every processor (`/proc/stat`); what our own processes did not take of it was taken by
others, or by the host of a virtual machine (`steal`). Nothing is known elsewhere: the share is 0.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Protocol

STAT = Path("/proc/stat")
CALM = 0.05
"""The most of the processors' time that others may have while something counts as undisturbed."""

LEAST_S = 0.25
"""Below it the counters, which go by hundredths of a second, say nothing."""


class Ranks(Protocol):
    """The processes of a measurement, which meet when this is made."""

    first: bool
    """Whether this is the process that speaks for all."""
    count: int
    on_host: bool
    """The devices are this computer's processors: other work on them takes its time from what is timed."""

    def sum(self, value: float) -> float:
        """Over all processes, the same on each."""
        ...


class Watch:
    """From its making on. `ticks` counts all processors' time in hundredths of a second, by kind."""

    def __init__(self, stat: Path = STAT) -> None:
        self._stat = stat
        self._start_s = perf_counter()
        self._before_s = taken_s(stat)

    def others_share(self, own_s: float) -> float:
        """The share of all processors' time since then that others had; `own_s`: what our processes took of it."""
        before, now = self._before_s, taken_s(self._stat)
        if before is None or now is None:
            return 0.0
        passed_s = perf_counter() - self._start_s
        if passed_s < LEAST_S:
            return 0.0
        there_s = passed_s * (os.cpu_count() or 1)
        return min(1.0, max(0.0, now - before - own_s) / there_s)

    def share_beside(self, ranks: Ranks, own_s: float) -> float:
        """The same beside all these processes, of which this one took `own_s`; their mean, the same on each. 0 where
        the devices are others."""
        if not ranks.on_host:
            return 0.0
        return ranks.sum(self.others_share(ranks.sum(own_s))) / ranks.count


def own_s(windows_s: Sequence[float], share: float) -> float:
    """Seconds of one call from several windows of calls, in all of which together others had this share: the fastest
    window, or the mean one without that share where nothing was undisturbed."""
    return min(min(windows_s), sum(windows_s) / len(windows_s) * (1 - share))


def taken_s(stat: Path = STAT) -> float | None:
    """Seconds that all processors together have worked since the machine started, or that its host kept from them."""
    try:
        line = stat.read_text().split("\n", 1)[0]
    except OSError:
        return None
    name, *ticks = line.split()
    assert name == "cpu", f"{stat} begins with {name}"
    user, nice, system, _idle, _waiting, irq, soft, stolen = (int(n) for n in ticks[:8])
    return (user + nice + system + irq + soft + stolen) / os.sysconf("SC_CLK_TCK")
