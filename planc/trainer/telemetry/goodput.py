"""Computes goodput from the metrics file of a run: how the wall-clock time of all starts of the run was used."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from planc.trainer.telemetry.metrics_file import Record


@dataclass(frozen=True)
class MeasuredGoodput:
    """Seconds of wall-clock time by use; the sum is `wall_s`.

    `productive_s`: steps, each counted once. `redone_s`: steps that were lost and repeated. `checkpoint_s`: training
    blocked by saves. `restart_s`: from each start of the run to its first step, compilation included, and between two
    starts. `stall_s`: all other time, such as waiting for data and held-out losses.
    """

    productive_s: float
    redone_s: float
    checkpoint_s: float
    restart_s: float
    stall_s: float

    @property
    def wall_s(self) -> float:
        return self.productive_s + self.redone_s + self.checkpoint_s + self.restart_s + self.stall_s

    @property
    def share(self) -> float:
        """The goodput: productive seconds as a fraction of wall-clock time."""
        return self.productive_s / self.wall_s


def measured_goodput(records: Iterable[Record]) -> MeasuredGoodput | None:
    """Return the goodput from `records`, the lines of the metrics file of one run; None before its first step.

    If the clock was set back between two records, the time between them counts as 0.
    """
    seconds = RunClock()
    for record in records:
        seconds.add(record)
    return seconds.goodput()


@dataclass
class _Start:
    """One start of a run. Times are UNIX seconds, later by as much as the clock was set back before."""

    began_s: float
    last_s: float
    """Time of its last record."""
    first: tuple[float, float] | None = None
    """The end and the duration of its first step."""


class RunClock:
    """Adds up the seconds of a run from its records, of which it keeps two numbers a step."""

    def __init__(self) -> None:
        self._starts: list[_Start] = []
        self._before_s: float | None = None
        self._back_s = self._saving_s = 0.0
        self._firsts: set[int] = set()
        """Index of the first step of each start."""
        self._steps, self._seconds = array("q"), array("d")
        """The number of each step, and its seconds without waiting for data."""

    def add(self, record: Record) -> None:
        """Note `record`, the next one. Raises KeyError, TypeError or ValueError for one that planc never writes."""
        now_s, kind = record["time"], record["kind"]
        self._back_s += max(0.0, (now_s if self._before_s is None else self._before_s) - now_s)
        self._before_s, now_s = now_s, now_s + self._back_s
        if kind == "start":
            self._starts.append(_Start(now_s, now_s))
        if not self._starts:
            return
        start = self._starts[-1]
        start.last_s = now_s
        if kind == "saved":
            self._saving_s += record["stall_s"]
        if kind == "step":
            if start.first is None:
                start.first = now_s, record["step_s"]
                self._firsts.add(len(self._steps))
            self._steps.append(int(record["step"]))
            self._seconds.append(record["step_s"] - record["data_s"])

    def goodput(self) -> MeasuredGoodput | None:
        """Return the goodput of the run until its last record; None before its first step."""
        if not self._steps:
            return None
        firsts = self._firsts
        usual_s = median([s for i, s in enumerate(self._seconds) if i not in firsts] or self._seconds)
        # The first step of a start compiles and connects: what is beyond a usual step belongs to the restart.
        counted = [min(s, usual_s) if i in firsts else s for i, s in enumerate(self._seconds)]
        productive_s = sum(dict(zip(self._steps, counted, strict=True)).values())
        redone_s, restart_s = sum(counted) - productive_s, self._restarting_s(usual_s)
        wall_s = self._starts[-1].last_s - self._starts[0].began_s
        stall_s = wall_s - productive_s - redone_s - self._saving_s - restart_s
        return MeasuredGoodput(productive_s, redone_s, self._saving_s, restart_s, max(0.0, stall_s))

    def _restarting_s(self, usual_s: float) -> float:
        """Return the seconds of restarts: from each start to the end of its first step, less a step's usual time
        (`usual_s`), plus the time between starts."""
        seconds = 0.0
        for number, start in enumerate(self._starts):
            until_s = start.first[0] - min(usual_s, start.first[1]) if start.first else start.last_s
            seconds += until_s - start.began_s
            if number:
                seconds += start.began_s - self._starts[number - 1].last_s
        return seconds
