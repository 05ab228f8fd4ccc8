"""Starts several processes on this machine, for training, tests and audits.

Each rank is a process group, so terminating a rank also terminates its children. A rank also asks the kernel to kill it
when its launcher dies (Linux), so that even `kill -9` leaves no orphans. planc does not use torchrun's agent: it would
import torch in the launcher (seconds, and absent with the xla extra), and one node needs no rendezvous. The environment
variables are those of torchrun, so the same worker also runs under torchrun, Slurm or Kubernetes.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, NamedTuple, NoReturn
from uuid import uuid4

if TYPE_CHECKING:
    from planc.ir.backend import Backend
    from planc.ir.plan import Plan

GRACE_S = 5.0
"""Grace period (s) between SIGTERM and SIGKILL."""
POLL_S = 0.05
PORTS = (20000, 32000)

OnLine = Callable[[int, str], None]
"""Callback with the rank and one line of its output, without the newline."""


@dataclass(frozen=True)
class Finished:
    """Result of a launch. `returncode` is 0 (success), the exit status of the first rank that failed, 75 (all ranks
    saved their state and exited on request), 124 (timeout) or 130 (interrupt)."""

    returncode: int
    outputs: tuple[str, ...]
    """Combined stdout and stderr of each rank."""
    failed_rank: int | None = None
    why: str = ""
    """The reason why a stalled launch was terminated."""

    @property
    def ok(self) -> bool:
        return self.returncode == 0


TIMED_OUT = 124
INTERRUPTED = 130
PREEMPTED = 75
"""Exit status of a rank that was asked to exit and has saved its state (EX_TEMPFAIL of sysexits.h: try again later)."""


def run(
    argv: Sequence[str],
    processes: int,
    *,
    env: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
    on_line: OnLine | None = None,
    saves_on_term: bool = False,
    stuck: Callable[[], tuple[int, str] | None] = lambda: None,
) -> Finished:
    """Run the command `argv` in `processes` ranks and wait for all of them.

    `env` is added to this process's environment. If a rank fails, the others are terminated after a short grace period.
    `on_line` is called with each line of output; if it raises an error, all ranks are terminated and the error is
    raised again. The timeout (`timeout_s`, None for none), and SIGINT and SIGTERM to this process if called on its main
    thread, terminate every rank with its child processes. With `saves_on_term`, the first SIGTERM is forwarded to the
    ranks, which save and exit with PREEMPTED; a second one terminates them. `stuck` is polled; if it returns a rank
    that blocks the others, with the reason, all are terminated.
    """
    deadline = time.monotonic() + timeout_s if timeout_s else float("inf")
    stop, term_requested = threading.Event(), threading.Event()
    ranks: list[_RankProcess] = []

    def ask() -> None:
        term_requested.set()
        for rank in ranks:
            with suppress(ProcessLookupError):
                rank.process.terminate()

    with _signals_set(stop, ask if saves_on_term else None):
        try:
            common = {**(env or {}), ATTEMPT: uuid4().hex, "MASTER_PORT": str(free_port())}
            for rank in range(processes):
                ranks.append(_RankProcess(rank, argv, _environment(rank, processes, common), on_line))
            ending = _wait_for_ranks(ranks, deadline, stop, term_requested, stuck)
        finally:
            _end_ranks(ranks)
    return Finished(ending.returncode, tuple(r.output() for r in ranks), ending.rank, ending.why)


def processes(plan: Plan, backend: Backend) -> int:
    """Return the number of processes for a run of `plan` on this machine: one per device, or one if `backend` drives
    all devices from one process."""
    return 1 if backend.one_process else plan.mesh.devices


def free_port() -> int:
    """Return a TCP port that is free at the moment.

    The port is below the range of outgoing connections (from 32768 on Linux, from 49152 elsewhere), because any
    connection on the machine could take a port of that range before rank 0 uses it.
    """
    for _ in range(100):
        port = random.SystemRandom().randrange(*PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("", port))
            return port
    raise OSError(f"no free port in {PORTS[0]}..{PORTS[1] - 1}")


def _environment(rank: int, world: int, common: Mapping[str, str]) -> dict[str, str]:
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",  # ranks share the cores; more threads only get in each other's way
        "PYTHONUNBUFFERED": "1",
        "PYTHONSAFEPATH": "1",  # nothing of the working directory is imported, by what a rank starts neither
        "MASTER_ADDR": "127.0.0.1",
        **common,
        **{name: str(value) for name, value in ranks.items()},
        PARENT: str(os.getpid()),
    }


PARENT = "PLANC_LAUNCHER_PID"
ATTEMPT = "PLANC_ATTEMPT"
"""The id of this launch, the same for all its ranks."""

# Runs in the rank itself, before its own program: a preexec_fn would run Python between fork and
# exec, which can deadlock when this process has threads (it has: one reader a rank).
_SHIM = """
import ctypes, os, sys
try:
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL
except (OSError, AttributeError):
    pass
if os.getppid() != int(os.environ["PLANC_LAUNCHER_PID"]):
    sys.exit("the launcher is gone")
os.execvp(sys.argv[1], sys.argv[1:])
"""


class _RankProcess:
    """One process, its process group, and the thread that reads its output."""

    def __init__(self, rank: int, argv: Sequence[str], env: dict[str, str], on_line: OnLine | None) -> None:
        self.rank = rank
        self._lines: list[str] = []
        self._on_line = on_line
        self.error: Exception | None = None
        """The error from `on_line`; the output is still read, because the rank would block on a full pipe."""
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _SHIM, *argv],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            try:
                self._lines.append(line)
                if self._on_line is not None and self.error is None:
                    self._on_line(self.rank, line.rstrip("\n"))
            except Exception as error:
                self.error = error

    def output(self) -> str:
        self._reader.join(timeout=GRACE_S)
        return "".join(self._lines)

    def signal_group(self, number: int) -> None:
        """Send the signal `number` to the whole process group, even if its leader has exited while its children are
        running."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)


class _LaunchEnd(NamedTuple):
    returncode: int
    rank: int | None = None
    why: str = ""


def _wait_for_ranks(
    ranks: list[_RankProcess],
    deadline: float,
    stop: threading.Event,
    term_requested: threading.Event,
    stuck: Callable[[], tuple[int, str] | None],
) -> _LaunchEnd:
    """Wait until all ranks succeed, one fails or is stuck, the timeout expires or a signal arrives; return the
    cause."""
    while not stop.wait(POLL_S):
        if error := next((r.error for r in ranks if r.error is not None), None):
            raise error
        codes = [r.process.poll() for r in ranks]
        failed = next((rank for rank, code in enumerate(codes) if code not in (None, 0, PREEMPTED)), None)
        if failed is not None and term_requested.is_set() and codes[failed] == -signal.SIGTERM:
            return _LaunchEnd(PREEMPTED)  # it had not come so far as to have anything to save
        if failed is not None:
            return _LaunchEnd(_exit_status(codes[failed] or 1), failed)
        if None not in codes:
            return _LaunchEnd(max(code or 0 for code in codes))
        if time.monotonic() > deadline:
            return _LaunchEnd(TIMED_OUT)
        if found := stuck():
            return _LaunchEnd(TIMED_OUT, *found)
    return _LaunchEnd(INTERRUPTED)


def _exit_status(code: int) -> int:
    """Return the exit status by the shell's convention: 128 + the signal that ended the process."""
    return code if code > 0 else 128 - code


def _end_ranks(ranks: list[_RankProcess]) -> None:
    """Terminate every process group: SIGTERM, a grace period, SIGKILL. Process groups that have ended are skipped."""
    running = [r for r in ranks if r.process.poll() is None]
    for rank in running:
        rank.signal_group(signal.SIGTERM)
    limit = time.monotonic() + GRACE_S
    while any(r.process.poll() is None for r in running) and time.monotonic() < limit:
        time.sleep(POLL_S)
    for rank in ranks:
        rank.signal_group(signal.SIGKILL)
        rank.process.wait()


def leave(code: int) -> NoReturn:
    """Exit this rank now with exit status `code`, after its work is done. Buffered output is flushed first.

    In a normal exit, threads of gloo's process groups may call an interpreter that has shut down. This aborts a
    finished rank (SIGABRT) once in some hundred runs (pytorch issue 190489, pull request 179291).
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@contextmanager
def _signals_set(stop: threading.Event, on_term: Callable[[], None] | None = None) -> Iterator[None]:
    """A context manager in which SIGINT and SIGTERM set `stop` instead of raising. If `on_term` is given, the first
    SIGTERM calls it instead. No effect outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    term_requested = False

    def handle(number: int, _frame: FrameType | None) -> None:
        nonlocal term_requested
        if number == signal.SIGTERM and on_term is not None and not term_requested:
            term_requested = True
            on_term()
        else:
            stop.set()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
