"""Computes goodput from the metrics file of a run: how the wall-clock time of all starts of the run was used."""

from __future__ import annotations

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


def measured_goodput(records: list[Record]) -> MeasuredGoodput | None:
    """Return the goodput from `records`, the lines of the metrics file of one run; None before its first step.

    If the clock was set back between two records, the time between them counts as 0.
    """
    records = _forward(records)
    starts = _starts(records)
    steps = [(r["step"], r["step_s"] - r["data_s"]) for start in starts for r in _records_of(start, "step")]
    if not steps:
        return None
    usual_s, firsts = median(_later_steps(starts) or [seconds for _, seconds in steps]), _first_steps(starts)
    # The first step of a start compiles and connects: what is beyond a usual step belongs to the restart.
    counted = [(step, min(seconds, usual_s) if (step, seconds) in firsts else seconds) for step, seconds in steps]
    last = dict(counted)
    productive_s = sum(last.values())
    redone_s = sum(seconds for _, seconds in counted) - productive_s
    checkpoint_s = sum(r["stall_s"] for start in starts for r in _records_of(start, "saved"))
    restart_s = _restarting(starts, usual_s)
    wall_s = records[-1]["time"] - starts[0][0]["time"]
    stall_s = wall_s - productive_s - redone_s - checkpoint_s - restart_s
    return MeasuredGoodput(productive_s, redone_s, checkpoint_s, restart_s, max(0.0, stall_s))


def _forward(records: list[Record]) -> list[Record]:
    """Return the records with times that never decrease. If the clock was set back, the difference is added to all
    later times."""
    found: list[Record] = []
    back_s, before = 0.0, records[0]["time"] if records else 0.0
    for record in records:
        back_s += max(0.0, before - record["time"])
        before = record["time"]
        found.append({**record, "time": before + back_s} if back_s else record)
    return found


def _starts(records: list[Record]) -> list[list[Record]]:
    """Return the records of a run, split into one list per start of the run."""
    found: list[list[Record]] = []
    for record in records:
        if record["kind"] == "start":
            found.append([])
        if found:
            found[-1].append(record)
    return found


def _records_of(start: list[Record], kind: str) -> list[Record]:
    return [r for r in start if r["kind"] == kind]


def _later_steps(starts: list[list[Record]]) -> list[float]:
    return [r["step_s"] - r["data_s"] for start in starts for r in _records_of(start, "step")[1:]]


def _first_steps(starts: list[list[Record]]) -> set[tuple[int, float]]:
    """Return (step, seconds without waiting for data) of the first step of each start."""
    firsts = [steps[0] for start in starts if (steps := _records_of(start, "step"))]
    return {(r["step"], r["step_s"] - r["data_s"]) for r in firsts}


def _restarting(starts: list[list[Record]], usual_s: float) -> float:
    """Return the seconds of restarts: from each start to the end of its first step, less a step's usual time
    (`usual_s`), plus the time between starts."""
    seconds = 0.0
    for number, start in enumerate(starts):
        steps = _records_of(start, "step")
        until = steps[0]["time"] - min(usual_s, steps[0]["step_s"]) if steps else start[-1]["time"]
        seconds += until - start[0]["time"]
        if number:
            seconds += start[0]["time"] - starts[number - 1][-1]["time"]
    return seconds
