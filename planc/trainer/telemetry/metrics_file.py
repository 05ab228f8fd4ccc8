"""The metrics file: one JSON object a line, written as the run goes on, by rank 0.

Every line has `time` (UNIX seconds) and `kind`:

- `start`: `plan_sha256`, `target`, `devices`, `tokens_per_step`, `done` (steps taken before this start), `predicted`;
- `step`, `held_out`, `saved`, `not_saved`, `skipped`: the fields of `planc.trainer.telemetry.events`;
- `end`: `why` is `done`, `preempted` or `failed`.

A run that goes on writes on in the same file; of a step that was taken twice the later line counts.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from planc.trainer.telemetry.events import Event, kind_of

NAME = "metrics.jsonl"
Record = dict[str, Any]


class Metrics:
    """An open metrics file. A disk that is full stops the metrics and not the run."""

    def __init__(self, path: Path, *, goes_on: bool, clock: Callable[[], float] = time.time) -> None:
        self.path, self._clock = path, clock
        self._file: TextIO | None = None
        with _ClosedOnError(self):
            path.parent.mkdir(parents=True, exist_ok=True)
            cut_short = goes_on and path.is_file() and not path.read_bytes().endswith(b"\n")
            self._file = open(path, "a" if goes_on else "w", encoding="utf-8")  # noqa: SIM115
            self._file.write("\n" if cut_short else "")

    def event(self, event: Event) -> None:
        """Write `event` as a line, under its kind."""
        self.write(kind_of(event), **asdict(event))

    def write(self, kind: str, **values: Any) -> None:
        """Write a line of this `kind` with the UNIX time and `values`; nothing happens after `close`."""
        if self._file is None:
            return
        with _ClosedOnError(self):
            self._file.write(json.dumps({"time": self._clock(), "kind": kind, **values}) + "\n")
            self._file.flush()

    def close(self) -> None:
        """Close the file; more lines are dropped."""
        with suppress(OSError):
            if self._file is not None:
                self._file.close()
        self._file = None

    def give_up(self, error: OSError) -> None:
        """Say on stderr that `error` ended the metrics, and close them."""
        print(f"{self.path} is not written any more: {error}", file=sys.stderr, flush=True)
        self.close()


class _ClosedOnError:
    """A context in which an OSError closes the metrics file and is not raised."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def __enter__(self) -> None: ...

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        if isinstance(error, OSError):
            self._metrics.give_up(error)
            return True
        return False


def read_metrics(path: Path) -> list[Record]:
    """The records of the metrics file at `path`; a line that a crash cut short is left out. Raises OSError."""
    found: list[Record] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        with suppress(ValueError):
            found.append(json.loads(line))
    return found
