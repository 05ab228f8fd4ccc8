"""The metrics file: one JSON object per line, written by rank 0 during the run.

Every line has `time` (UNIX seconds) and `kind`:

- `start`: `plan_sha256`, `target`, `devices`, `tokens_per_step`, `done` (steps taken before this start), `predicted`;
- `step`, `held_out`, `saved`, `not_saved`, `skipped`: the fields of `planc.trainer.telemetry.events`;
- `end`: `why` is `done`, `preempted` or `failed`.

A resumed run appends to the same file; if a step was taken twice, its later line counts.
"""

from __future__ import annotations

import errno
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any, TextIO

from planc.files import open_regular, parse_json
from planc.trainer.telemetry.events import Event, kind_of

NAME = "metrics.jsonl"
LONGEST_LINE_BYTES = 1 << 20
"""Maximum size in bytes of a line."""
LINES_A_CALL = 10_000
"""Lines between two reports of how far a file has been read."""
Record = dict[str, Any]


class Metrics:
    """An open metrics file. If the disk is full, no more metrics are written, but the run goes on."""

    def __init__(self, path: Path, *, goes_on: bool, clock: Callable[[], float] = time.time) -> None:
        self.path, self._clock = path, clock
        self._file: TextIO | None = None
        with _ClosedOnError(self):
            path.parent.mkdir(parents=True, exist_ok=True)
            cut_short = goes_on and _is_cut_short(path)
            self._file = _opened(path, goes_on)
            self._file.write("\n" if cut_short else "")

    def event(self, event: Event) -> None:
        """Write `event` as a line, with the name of its kind."""
        self.write(kind_of(event), **asdict(event))

    def write(self, kind: str, **values: Any) -> None:
        """Write a line of the kind `kind`, with the UNIX time and `values`. No effect after `close`."""
        if self._file is None:
            return
        with _ClosedOnError(self):
            self._file.write(json.dumps({"time": self._clock(), "kind": kind, **values}) + "\n")
            self._file.flush()

    def close(self) -> None:
        """Close the file. Lines that are written later are discarded."""
        with suppress(OSError):
            if self._file is not None:
                self._file.close()
        self._file = None

    def give_up(self, error: OSError) -> None:
        """Report `error` on stderr and close the file."""
        print(f"{self.path} is not written any more: {error}", file=sys.stderr, flush=True)
        self.close()


class _ClosedOnError:
    """A context manager in which an OSError closes the metrics file and is suppressed."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def __enter__(self) -> None: ...

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        if isinstance(error, OSError):
            self._metrics.give_up(error)
            return True
        return False


def may_replace(path: Path) -> bool:
    """True if metrics may be written at `path` without loss of another file: nothing is there, or an empty file, a
    metrics file or a device such as /dev/null."""
    if path.is_symlink():
        return False
    if not path.exists():
        return True
    if not path.is_file():
        return path.is_char_device()
    try:
        with open_regular(path) as file:
            line = file.readline(LONGEST_LINE_BYTES)
        first = parse_json(line, finite=False) if line else {"kind": "start"}
    except (OSError, ValueError):
        return False
    return isinstance(first, dict) and first.get("kind") == "start"


def read_metrics(path: Path, passed: Callable[[float], object] = bool) -> Iterator[Record]:
    """Yield the records in the metrics file at `path`. Truncated or invalid lines are skipped. Raises OSError.

    From time to time `passed` is called with the share of the file that has been read.
    """
    with open_regular(path) as file:
        size, done = max(1, os.fstat(file.fileno()).st_size), 0
        for number in count():
            if not (line := file.readline(LONGEST_LINE_BYTES)):
                return
            done += len(line)
            if number % LINES_A_CALL == 0:
                passed(done / size)
            with suppress(ValueError):
                record = parse_json(line, finite=False)  # a loss may be NaN
                if isinstance(record, dict) and "kind" in record:
                    yield record


def _is_cut_short(path: Path) -> bool:
    """True if the last line of the file has no newline."""
    if not path.is_file() or path.stat().st_size == 0:
        return False
    with open_regular(path) as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


def _opened(path: Path, goes_on: bool) -> TextIO:
    """Open the file for writing; append if `goes_on`. Raises OSError for a symbolic link or any file but metrics."""
    if not may_replace(path):
        raise FileExistsError(errno.EEXIST, "another file is there, which is no metrics file")
    # O_NONBLOCK: a pipe without a reader fails at once and does not block the run
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    handle = os.open(path, flags | (os.O_APPEND if goes_on else os.O_TRUNC), 0o666)
    return os.fdopen(handle, "w", encoding="utf-8")
