"""Calls of the operating system that planc's own code makes: counted, and the n-th one made to fail.

`CountedCalls` stands between Python and the system: opening a file for writing, every write that leaves Python's
buffers, fsync, rename, mkdir, unlink, rmdir, chmod, taking a lock, and sockets' bind and connect. Only a call that
planc makes, itself or through Python's library, is counted; those of the frameworks are not.
"""

from __future__ import annotations

import builtins
import errno
import fcntl
import io
import json
import os
import socket
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
OWN = (str(ROOT / "planc") + os.sep, str(ROOT / "backends") + os.sep)
LIBRARY = sysconfig.get_path("stdlib") + os.sep
FROZEN = "<frozen "
"""Begins the file names of the library's modules that are part of the interpreter, as `os` is."""
PACKAGES = (os.sep + "site-packages" + os.sep, os.sep + "dist-packages" + os.sep)
HERE = str(Path(__file__).resolve())

ERRORS = ("ENOSPC", "EIO", "EACCES", "short")
"""Errors of a failing call; `short`: a write of half the bytes, and no room for the rest. Other calls than writes have
ENOSPC there."""
FOR_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
PATCHED = {
    os: ("open", "fsync", "rename", "replace", "mkdir", "unlink", "remove", "rmdir", "chmod", "fchmod"),
    fcntl: ("flock",),
    socket.socket: ("bind", "connect"),
}
REAL = {(owner, name): getattr(owner, name) for owner, names in PATCHED.items() for name in names}
REAL_OPEN, REAL_WRITE = io.open, os.write
"""The real functions; a fork of a process whose calls are counted counts its own alone."""


@dataclass(frozen=True)
class Call:
    """A call: its name, the file or folder's name, and the line of planc that made it."""

    name: str
    about: str
    place: str


@dataclass(frozen=True)
class Fault:
    """The `number`-th call (from 1) fails with `error`, one of ERRORS; 0: none does."""

    number: int = 0
    error: str = "ENOSPC"


NO_FAULT = Fault()


class CountedCalls:
    """The calls of this process so far; one of them fails."""

    def __init__(self, fault: Fault = NO_FAULT, log: Path | None = None) -> None:
        """`log`: every call is noted in it, as a line of JSON, before it is made."""
        self.fault, self.calls = fault, list[Call]()
        self._log = None if log is None else REAL[os, "open"](log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._lock = threading.Lock()
        self._short = False

    @property
    def struck(self) -> Call | None:
        """The call that failed."""
        return self.calls[self.fault.number - 1] if 0 < self.fault.number <= len(self.calls) else None

    def strikes(self, name: str, about: object = "") -> str:
        """Count a call. The error that it must end with, or an empty string."""
        place = _place_in_planc(sys._getframe(1))
        if not place:
            return ""
        with self._lock:
            self.calls.append(Call(name, os.path.basename(os.fsdecode(_text(about))), place))
            if self._log is not None:
                REAL_WRITE(self._log, (json.dumps(list(vars(self.calls[-1]).values())) + "\n").encode())
            return self.fault.error if len(self.calls) == self.fault.number else ""

    def fail(self, error: str, about: object = "") -> None:
        """Raise `error` of `about`, if it is one."""
        if error:
            number = getattr(errno, error, errno.ENOSPC)
            raise OSError(number, os.strerror(number), _text(about) or None)

    def write(self, about: object, data: Any, real: Callable[[Any], int | None]) -> int | None:
        """One write of a file: whole, failing, or of half the bytes with no room for the rest."""
        if self._short and _place_in_planc(sys._getframe(1)):
            self._short = False
            self.fail("ENOSPC", about)
        error = self.strikes("write", about)
        if error == "short" and len(data) > 1:
            self._short = True
            return real(memoryview(data)[: len(data) // 2])
        self.fail(error, about)
        return real(data)

    @contextmanager
    def installed(self) -> Iterator[CountedCalls]:
        """Within, calls of this process are counted."""
        before = {key: getattr(*key) for key in REAL}
        opened = io.open
        try:
            for (owner, name), real in REAL.items():
                setattr(owner, name, self._counted(name, real))
            builtins.open = io.open = self._opened
            yield self
        finally:
            builtins.open = io.open = opened
            for (owner, name), patched in before.items():
                setattr(owner, name, patched)

    def _counted(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            about = arguments[0] if arguments else ""
            if name == "open" and not (arguments[1] if len(arguments) > 1 else named.get("flags", 0)) & FOR_WRITING:
                return real(*arguments, **named)
            if isinstance(about, socket.socket):
                about = arguments[1]
            self.fail(self.strikes(name, about), about)
            return real(*arguments, **named)

        return call

    def _opened(
        self,
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Any = None,
    ) -> Any:
        """`open`, whose files count their writes where planc opens them to write."""
        if not set(mode) & set("wax+") or not _place_in_planc(sys._getframe(1)):
            return REAL_OPEN(file, mode, buffering, encoding, errors, newline, closefd, opener)
        if not isinstance(file, int):
            self.fail(self.strikes("open", file), file)
        raw = _CountedFile(self, file, mode.replace("b", "").replace("t", ""), closefd, opener)
        if buffering == 0:
            return raw
        buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        if "b" in mode:
            return buffered
        return io.TextIOWrapper(buffered, encoding or "utf-8", errors, newline, line_buffering=buffering == 1)


class _CountedFile(io.FileIO):
    """A file whose writes are counted."""

    def __init__(self, calls: CountedCalls, file: Any, mode: str, closefd: bool, opener: Any) -> None:
        super().__init__(file, mode, closefd, opener)
        self._calls = calls

    def write(self, data: Any) -> int | None:
        return self._calls.write(self.name, data, super().write)


def _place_in_planc(frame: Any) -> str:
    """The line of planc that makes this call, itself or through Python's library; empty for a call of others."""
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(OWN):
            return f"{os.path.relpath(file, ROOT)}:{frame.f_lineno} {frame.f_code.co_name}"
        library = file.startswith((LIBRARY, FROZEN)) and not any(part in file for part in PACKAGES)
        if file != HERE and not library:
            return ""
        frame = frame.f_back
    return ""


def _text(about: object) -> str:
    return str(about) if isinstance(about, str | bytes | os.PathLike | tuple) else ""


def read_log(path: Path) -> list[Call]:
    """The calls noted in a log."""
    return [Call(*json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []
