"""One line of progress on standard error for commands that take long."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from types import TracebackType
from typing import TextIO

TERMINAL_AFTER_S = 0.5
"""Shorter commands show nothing on a terminal."""
TERMINAL_EVERY_S = 0.2
TICK_S = 1.0
LOG_AFTER_S = 10.0
"""Interval (s) of progress lines if standard error is a file or a pipe; the first comes after it."""


class Progress:
    """A context manager that prints progress. `show` may be called at any rate.

    A terminal has one line, which is overwritten and finally erased; other outputs get a line every ten seconds.
    """

    def __init__(self, command: str, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.command, self.stream, self.clock = command, stream or sys.stderr, clock
        self.terminal = self.stream.isatty()
        self.started_s = clock()
        self.next_s = self.started_s + (TERMINAL_AFTER_S if self.terminal else LOG_AFTER_S)
        self.shown = False

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.shown and self.terminal:
            self._write("\r\033[K")

    @contextmanager
    def during(self, text: str) -> Iterator[Callable[[str], None]]:
        """Print `text` from time to time while the body runs. The body gets a function that replaces the text."""
        ended, texts = Event(), [text]

        def tick() -> None:
            while not ended.wait(TICK_S):
                self.show(texts[-1])

        ticker = Thread(target=tick, daemon=True)
        try:
            ticker.start()
        except RuntimeError:  # no more threads, or none at all, as in a browser: nothing is shown meanwhile
            yield texts.append
            return
        try:
            yield texts.append
        finally:
            ended.set()
            ticker.join()

    def show(self, text: str) -> None:
        """Print `text`, which says what is being done, unless a line was printed a short time ago."""
        now_s = self.clock()
        if now_s < self.next_s:
            return
        self.next_s = now_s + (TERMINAL_EVERY_S if self.terminal else LOG_AFTER_S)
        self.shown = True
        line = f"planc {self.command}: {text} ({now_s - self.started_s:.0f} s)"
        self._write(f"\r{line[: shutil.get_terminal_size().columns - 1]}\033[K" if self.terminal else f"{line}\n")

    def _write(self, text: str) -> None:
        """Write to standard error. Errors are ignored, because progress must not end the command."""
        try:
            self.stream.write(text)
            self.stream.flush()
        except (OSError, ValueError):
            self.next_s = float("inf")
