"""Reports the events of a worker process to the launcher or terminal, the metrics file, and dashboards."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

from planc.ir.target import Target
from planc.trainer.preset.load import Preset
from planc.trainer.telemetry.boards import Board, boards
from planc.trainer.telemetry.events import Event, EventTable, encode, say
from planc.trainer.telemetry.goodput import MeasuredGoodput, measured_goodput
from planc.trainer.telemetry.metrics_file import NAME, Metrics, read_metrics

EVENTS = "PLANC_EVENTS"
"""Environment variable set by planc's launcher: rank 0 writes events instead of a table."""
PREDICTED = "PLANC_PREDICTED"
"""Environment variable with the cost model's predictions for the run, as JSON."""

Listener = Callable[[Event], None]


class Watching:
    """Reports the events of a run on rank 0. On other ranks nothing is opened or written."""

    def __init__(self, preset: Preset, target: Target, rank: int, path: Path) -> None:
        self._preset, self._target, self._rank, self._path = preset, target, rank, path
        self._metrics: Metrics | None = None
        self._boards: list[Board] = []
        self._listeners: list[Listener] = [_listener(preset.train.log_every)] if rank == 0 else []

    def open(self, began: float, done: int) -> None:
        """Start to report. `began` is the UNIX time of this start of the run, `done` the number of steps taken before
        it."""
        if self._rank != 0:
            return
        plan = self._preset.plan
        self._metrics = Metrics(self._path, goes_on=done > 0)
        said: dict[str, Any] = {"plan_sha256": plan.sha256, "target": self._target, "devices": plan.mesh.devices}
        said["dtype"] = plan.precision.compute
        predicted = json.loads(os.environ.get(PREDICTED, "null"))
        self._metrics.write(
            "start", time=began, **said, tokens_per_step=plan.batch.tokens, done=done, predicted=predicted
        )
        self._boards = boards(self._preset)
        self._listeners += [self._metrics.event, *self._boards]

    def tell(self, event: Event) -> None:
        """Write `event` to the output, the metrics file and the dashboards; no effect on ranks other than 0."""
        for listener in self._listeners:
            listener(event)

    def goodput(self) -> MeasuredGoodput | None:
        """Return the goodput of the run so far, over all its starts; None if the metrics file cannot be read."""
        if self._metrics is None or not self._path.is_file():
            return None
        try:
            return measured_goodput(chain(read_metrics(self._path), [{"time": time.time(), "kind": "end"}]))
        except (OSError, ArithmeticError, KeyError, TypeError, ValueError):  # records of another's making
            return None

    def close(self, why: str) -> None:
        """Write the end of the run with the reason `why` to the metrics file, and close all outputs."""
        if self._metrics is not None:
            self._metrics.write("end", why=why)
            self._metrics.close()
        for board in self._boards:
            board.close()


def metrics_path(preset: Preset, target: Target, receipt: Path | None) -> Path:
    """Return the path of a run's metrics file: the path in `preset`; else a file in its checkpoint folder; else beside
    `receipt` (None: no receipt is written); else in `runs/`, named by the preset and `target`."""
    if preset.parts.watch.metrics:
        return preset.path.parent / preset.parts.watch.metrics
    if preset.checkpoints is not None:
        return preset.checkpoints / NAME
    if receipt is not None:
        return receipt.with_suffix(f".{NAME}")
    return Path("runs") / f"{preset.path.stem}-{target}.{NAME}"


def _listener(log_every: int) -> Listener:
    if EVENTS in os.environ:
        return lambda event: say(encode(event))
    return EventTable(sys.stdout, log_every)
