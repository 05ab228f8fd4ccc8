"""The share of planc's lines that inputs reach, by room: `tests/fuzz/run.py --coverage`.

A plain trace function: it looks at the lines of a function's first calls only, so it costs little.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from tests.docstrings import source_files
from tests.fuzz.kinds import Kind

ROOT = Path(__file__).parents[2]
MOST_CALLS = 300
"""Calls of a function whose lines are looked at."""


class Lines:
    """The lines of planc's own files that ran, by file."""

    def __init__(self) -> None:
        self.ran: dict[str, set[int]] = {str(f): set() for f in source_files(ROOT)}
        self._names: dict[str, str | None] = {}
        self._calls: Counter[CodeType] = Counter()

    def __call__(self, frame: FrameType, event: str, argument: object) -> Callable[..., Any] | None:
        """The trace function of `sys.settrace`."""
        del event, argument
        code = frame.f_code
        name = self._name(code.co_filename)
        if name is None or self._calls[code] >= MOST_CALLS:
            return None
        self._calls[code] += 1
        seen = self.ran[name]

        def line(inner: FrameType, event: str, argument: object) -> Callable[..., Any]:
            del argument
            if event == "line":
                seen.add(inner.f_lineno)
            return line

        return line

    def _name(self, file: str) -> str | None:
        """The file's own name: `planc/backends` is a link."""
        if file not in self._names:
            real = str(Path(file).resolve())
            self._names[file] = real if real in self.ran else None
        return self._names[file]


def by_room(chosen: list[Kind], seed: int, count: int) -> str:
    """Run `count` inputs of each kind in this process; a line for each room."""
    lines = Lines()
    for kind in chosen:
        kind.warm()
        sys.settrace(lines)
        try:
            for index in range(count):
                with tempfile.TemporaryDirectory() as folder:
                    kind.run(kind.make(seed, index), Path(folder), index)
        finally:
            sys.settrace(None)
    return "\n".join(_table(lines))


def _table(lines: Lines) -> Iterator[str]:
    reached, every = Counter[str](), Counter[str]()
    for name, ran in lines.ran.items():
        inside = _in_functions(compile(Path(name).read_text(), name, "exec"))
        room = str(Path(name).parent.relative_to(ROOT))
        every[room] += len(inside)
        reached[room] += len(inside & ran)
    for room in sorted(every):
        if every[room]:
            yield _row(room, reached[room], every[room])
    yield _row("all", reached.total(), every.total())


def _row(name: str, reached: int, every: int) -> str:
    return f"{name:<32} {reached:>6,} of {every:>6,} lines  {100 * reached / every:5.1f} %"


def _in_functions(code: CodeType) -> set[int]:
    """The lines of functions: those of modules and classes run when they are imported."""
    found: set[int] = set()
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            if inner.co_flags & 0x2:  # a function's locals are fast ones; a class body's are not
                found |= {line for _, _, line in inner.co_lines() if line and line != inner.co_firstlineno}
            found |= _in_functions(inner)
    return found
