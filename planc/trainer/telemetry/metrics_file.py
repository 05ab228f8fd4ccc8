"""The metrics file: one JSON object a line, written as the run goes on, by rank 0.

Every line has `time` (UNIX seconds) and `kind`:

- `start`: `plan_sha256`, `target`, `devices`, `tokens_per_step`, `done` (steps taken before this start), `predicted`;
- `step`, `held_out`, `saved`, `not_saved`, `skipped`: the fields of `planc.trainer.telemetry.events`;
- `end`: `why` is `done`, `preempted` or `failed`.

A run that goes on writes on in the same file; of a step that was taken twice the later line counts.
"""

from __future__ import annotations

import errno
import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from planc.files import open_regular, parse_json
from planc.trainer.telemetry.events import Event, kind_of

NAME = "metrics.jsonl"
LONGEST_LINE_BYTES = 1 << 20
"""Largest size in bytes of a line that is read."""
Record = dict[str, Any]


class Metrics:
    """An open metrics file. A disk that is full stops the metrics and not the run."""

    def __init__(self, path: Path, *, goes_on: bool, clock: Callable[[], float] = time.time) -> None:
        self.path, self._clock = path, clock
        self._file: TextIO | None = None
        with _ClosedOnError(self):
            path.parent.mkdir(parents=True, exist_ok=True)
            cut_short = goes_on and _is_cut_short(path)
            self._file = _opened(path, goes_on)
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


def may_replace(path: Path) -> bool:
    """True where metrics at `path` replace nothing else: no file is there, or an empty one, or a metrics file."""
    if path.is_symlink():
        return False
    if not path.exists():
        return True
    if not path.is_file():
        return path.is_char_device()
    try:
        with open_regular(path) as file:
            line = file.readline(LONGEST_LINE_BYTES)
        first = parse_json(line) if line else {"kind": "start"}
    except (OSError, ValueError):
        return False
    return isinstance(first, dict) and first.get("kind") == "start"


def read_metrics(path: Path) -> list[Record]:
    """The records of the metrics file at `path`, without lines that were cut short or are no record. Raises OSError."""
    found: list[Record] = []
    with open_regular(path) as file:
        while line := file.readline(LONGEST_LINE_BYTES):
            with suppress(ValueError):
                record = parse_json(line)
                if isinstance(record, dict) and "kind" in record:
                    found.append(record)
    return found


def _is_cut_short(path: Path) -> bool:
    """True for a file whose last line has no end."""
    if not path.is_file() or path.stat().st_size == 0:
        return False
    with open_regular(path) as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


def _opened(path: Path, goes_on: bool) -> TextIO:
    """The file, open for writing. Raises OSError for a link and for any other file than metrics."""
    if not may_replace(path):
        raise FileExistsError(errno.EEXIST, "another file is there, which is no metrics file")
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    handle = os.open(path, flags | (os.O_APPEND if goes_on else os.O_TRUNC), 0o666)
    return os.fdopen(handle, "w", encoding="utf-8")
