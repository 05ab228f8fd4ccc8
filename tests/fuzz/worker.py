"""A process that runs inputs under limits of time and memory, and is begun anew when it hangs or dies."""

from __future__ import annotations

import gc
import json
import mmap
import os
import resource
import select
import signal
import struct
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from tests.fuzz.kinds import Kind

ROOT = Path(__file__).parents[2]
PLACE = struct.Struct("q")
"""The number of the input that runs; below 0 between inputs."""


@dataclass(frozen=True)
class Limits:
    """`cpu_s` is the time that an input may compute: by the clock it may take longer, for others use the cores too.
    `asleep_s` is the time that it may wait without computing. `memory_bytes` is what the process may hold."""

    cpu_s: float = 5.0
    asleep_s: float = 5.0
    memory_bytes: int = 4 << 30


@dataclass(frozen=True)
class Outcome:
    """An input's end: labels, or what went wrong."""

    index: int
    labels: tuple[str, ...] = ()
    cpu_s: float = 0.0
    failure: str = ""
    """Kind of exception and the innermost place in planc; "hang at ..." for one that took too long."""
    trace: str = ""


class HangError(BaseException):
    """Raised in an input that has computed for too long; no `except Exception` stops it."""


class Watch:
    """Watches a process from outside: for what no signal handler of Python stops."""

    def __init__(self, pid: int, limits: Limits) -> None:
        self._pid, self._limits = pid, limits
        self._index, self._began_s, self._cpu_s, self._awake = -1, 0.0, 0.0, 0.0

    def hangs(self, index: int) -> str:
        """Why the input `index` is to be ended; empty while it may go on."""
        fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        cpu_s, now = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), time.monotonic()
        if index != self._index:
            self._index, self._began_s, self._awake = index, cpu_s, now
        if fields[0] not in "SD" or cpu_s > self._cpu_s:
            self._awake = now
        self._cpu_s = cpu_s
        if now - self._awake > self._limits.asleep_s:
            return f"asleep for {self._limits.asleep_s:g} s"
        return "computes on" if cpu_s - self._began_s > 2 * self._limits.cpu_s else ""


@dataclass
class Worker:
    """Runs inputs of one kind in a process of its own."""

    kind: Kind
    limits: Limits = field(default_factory=Limits)
    _pid: int = 0
    _place: mmap.mmap = field(default_factory=lambda: mmap.mmap(-1, PLACE.size))

    def numbered(self, seed: int, start: int, stop: int) -> Iterator[Outcome]:
        """The outcomes of the inputs `start` up to `stop` of a seed."""
        while start < stop:
            for outcome in self._in_a_process([(n, None) for n in range(start, stop)], seed):
                start = outcome.index + 1
                yield outcome

    def given(self, data: bytes, index: int = 0) -> Outcome:
        """The outcome of one input."""
        (outcome,) = self._in_a_process([(index, data)], 0)
        return outcome

    def _in_a_process(self, inputs: list[tuple[int, bytes | None]], seed: int) -> Iterator[Outcome]:
        """Outcomes up to the last input, or to the one that the process did not survive."""
        self._place[:] = PLACE.pack(-1)
        reading, writing = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(reading)
            self._serve(inputs, seed, writing)
        os.close(writing)
        try:
            yield from self._received(reading)
        finally:
            os.close(reading)
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)

    def _received(self, reading: int) -> Iterator[Outcome]:
        pending, watch = b"", Watch(self._pid, self.limits)
        while True:
            ready, _, _ = select.select([reading], [], [], min(1.0, self.limits.asleep_s / 4))
            block = os.read(reading, 1 << 16) if ready else b""
            *lines, pending = (pending + block).split(b"\n")
            yield from map(_read, lines)
            running = PLACE.unpack(self._place[:])[0]
            if ready and not block:
                if running >= 0:
                    yield Outcome(running, failure="the process died")
                return
            if not ready and running >= 0 and (why := watch.hangs(running)):
                yield Outcome(running, failure=f"hang: {why}, stopped from outside")
                return

    # In the process.

    def _serve(self, inputs: list[tuple[int, bytes | None]], seed: int, writing: int) -> None:
        """Run the inputs and write a line for each. Does not return."""
        status = 1
        try:
            _become(self.limits.memory_bytes)
            with tempfile.TemporaryDirectory(prefix="planc-fuzz-") as top:
                for index, data in inputs:
                    outcome = self._run(index, data, seed, Path(top))
                    os.write(writing, _written(outcome))
            status = 0
        finally:
            os._exit(status)

    def _run(self, index: int, data: bytes | None, seed: int, top: Path) -> Outcome:
        folder = top / "input"
        folder.mkdir()
        began = time.process_time()
        self._place[:] = PLACE.pack(index)
        labels: tuple[str, ...] = ()
        failure = trace = ""
        try:
            signal.setitimer(signal.ITIMER_VIRTUAL, self.limits.cpu_s)
            made = self.kind.make(seed, index) if data is None else data
            labels = self.kind.run(made, folder, index)
        except (Exception, HangError) as error:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            failure, trace = _signature(error), "".join(traceback.format_exception(error)[-40:])
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        self._place[:] = PLACE.pack(-1)
        _emptied(folder)
        return Outcome(index, labels, time.process_time() - began, failure, trace)


def _become(memory_bytes: int) -> None:
    """The worker's own settings."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGVTALRM, _too_long)


def _too_long(_signal: int, _frame: FrameType | None) -> None:
    raise HangError


def _emptied(folder: Path) -> None:
    """Remove what an input left, whatever it is."""
    import shutil

    shutil.rmtree(folder)


def _signature(error: BaseException) -> str:
    """The exception and its place: two inputs with the same signature fail for one reason."""
    frames = traceback.extract_tb(error.__traceback__)
    tops = tuple(f"{ROOT}/{top}/" for top in ("planc", "backends"))
    own = [f for f in frames if f.filename.startswith(tops)] or frames[:-1] or list(frames)
    place = f"{Path(own[-1].filename).name}:{own[-1].name}" if own else "nowhere"
    if isinstance(error, HangError):
        return f"hang at {place}"
    said = f": {str(error)[:60]}" if isinstance(error, AssertionError) else ""
    return f"{type(error).__name__} at {place}{said}"


def _written(outcome: Outcome) -> bytes:
    values = [outcome.index, outcome.labels, round(outcome.cpu_s, 4), outcome.failure, outcome.trace]
    return json.dumps(values).encode() + b"\n"


def _read(line: bytes) -> Outcome:
    index, labels, cpu_s, failure, trace = json.loads(line)
    values: dict[str, Any] = {"labels": tuple(labels), "cpu_s": cpu_s, "failure": failure, "trace": trace}
    return Outcome(index, **values)
