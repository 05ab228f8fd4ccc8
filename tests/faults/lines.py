"""Memory that is refused: a MemoryError at the n-th line of planc's own code that a process runs.

Any line may allocate. The lines of a run are counted first; a line is drawn, and one of the times that it was run, so
that a line in a loop does not hide the others.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from linecache import getline
from pathlib import Path
from typing import Any

from tests.faults.calls import OWN, ROOT


@dataclass(frozen=True)
class LineFault:
    """The `number`-th time that `line` of a file is run."""

    line: str
    number: int
    error: str = "MemoryError"


NO_LINE = LineFault("", 0)
"""Lines are counted alone."""


class CountedLines:
    """Lines of planc that this process runs, in all its threads; at one of them it has no memory left."""

    def __init__(self, fault: LineFault | None, log: Path) -> None:
        self._fault, self._log = fault, log
        self._seen: Counter[str] = Counter()
        self._names: dict[str, str] = {}

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Within, lines are counted; the counts are written at the end."""
        threading.settrace(self._called)
        sys.settrace(self._called)
        try:
            yield
        finally:
            sys.settrace(None)
            threading.settrace(None)
            if self._fault is None:
                self._log.write_text(json.dumps(self._seen))

    def _called(self, frame: Any, _event: str, _argument: object) -> Any:
        file = frame.f_code.co_filename
        if file not in self._names:
            self._names[file] = os.path.relpath(file, ROOT) if file.startswith(OWN) else ""
        return self._line if self._names[file] else None

    def _line(self, frame: Any, event: str, _argument: object) -> Any:
        if event == "line":
            line = f"{self._names[frame.f_code.co_filename]}:{frame.f_lineno}"
            self._seen[line] += 1
            if self._fault and line == self._fault.line and self._seen[line] == self._fault.number:
                self._log.write_text(line)
                raise MemoryError
        return self._line


def drawn(counted: dict[str, int], dice: random.Random) -> LineFault:
    """One of the lines that may allocate, and one of its times."""
    line = dice.choice(sorted(line for line in counted if not _allocates_nothing(line)))
    return LineFault(line, dice.randrange(counted[line]) + 1)


def _allocates_nothing(line: str) -> bool:
    """A line that only opens a `try` runs nothing, and a fault planted in it is raised in front of it."""
    file, _, number = line.rpartition(":")
    return getline(str(ROOT / file), int(number)).strip() == "try:"
