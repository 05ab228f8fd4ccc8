"""Progress goes to standard error: at once and in place on a terminal, seldom and in lines elsewhere."""

import io
from threading import Event, Thread

import pytest

from planc.cli.progress import LOG_AFTER_S, Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def run_for(stream: io.StringIO, duration_s: int) -> str:
    """Output of a command that reports ten times a second."""
    clock = Clock()
    with Progress("search", stream, clock) as progress:
        for tick in range(duration_s * 10):
            clock.now_s = tick / 10
            progress.show(f"{tick} layouts costed")
    return stream.getvalue()


def test_a_terminal_has_one_line_that_is_erased_at_the_end() -> None:
    written = run_for(Terminal(), 3)
    assert written.startswith("\rplanc search: 5 layouts costed (0 s)") and "(2 s)" in written
    assert "\n" not in written and written.endswith("\r\033[K")


def test_a_log_has_a_line_every_ten_seconds() -> None:
    written = run_for(io.StringIO(), 35).splitlines()
    assert written == [f"planc search: {s * 10} layouts costed ({s} s)" for s in (10, 20, 30)]


def test_short_commands_write_nothing() -> None:
    assert run_for(io.StringIO(), int(LOG_AFTER_S)) == ""
    assert Terminal().getvalue() == ""
    quick = Terminal()
    with Progress("search", quick, Clock()) as progress:
        progress.show("1 layout costed")
    assert quick.getvalue() == ""


def test_a_closed_stream_does_not_end_the_command() -> None:
    stream, clock = Terminal(), Clock()
    with Progress("search", stream, clock) as progress:
        clock.now_s = 1.0
        stream.close()
        progress.show("1 layout costed")


def test_a_body_that_reports_nothing_is_named_while_it_runs() -> None:
    stream, clock, shown = Terminal(), Clock(), Event()

    class Watched(Progress):
        def show(self, text: str) -> None:
            super().show(text)
            shown.set()

    with Watched("audit", stream, clock) as progress, progress.during("compiling"):
        clock.now_s = 3.0
        assert shown.wait(20)
    assert "planc audit: compiling (3 s)" in stream.getvalue() and stream.getvalue().endswith("\r\033[K")


def test_where_no_thread_can_be_started_the_work_is_done_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_thread: Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Thread, "start", refuse)
    done = []
    with Progress("report", io.StringIO()) as progress, progress.during("drawing"):
        done.append("drawn")
    assert done == ["drawn"]
