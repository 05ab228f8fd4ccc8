"""`planc train` in forks of one process that has imported the frameworks: a run costs its steps, not its imports.

The command, and each rank that it starts, is a process of its own, with its own signals, pipes and environment, as
launched from a shell; in each a call may be made to fail (`tests/faults/calls.py`).
"""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from tests.faults import AnyFault
from tests.faults.calls import NO_FAULT, CountedCalls
from tests.faults.lines import CountedLines, LineFault
from tests.faults.sockets import NO_SOCKET, SocketFault, counted_sockets

if TYPE_CHECKING:
    from tests.faults.nth import Place

PDEATHSIG, CHILD_SUBREAPER = 1, 36
LAUNCHER = "launcher"
ENDS_WITHIN_S, LEFT_WITHIN_S = 1500.0, 15.0
"""Longest times until a run has ended, and its processes after it."""
MODULES = "PLANC_TEST_MODULES"
"""Environment variable: a file in which a rank lists the modules that it has imported at its end."""
Plant = Callable[[str], Any]
"""Given the name of a process, `launcher` or `rank R`: a context manager in which it runs."""


def prepare(stack: str, devices: int) -> None:
    """Import what runs on this stack need, so that forks have it. No device is used yet."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    import planc.cli.commands.train
    import planc.trainer.checkpoint.manager
    import planc.trainer.run.worker

    if stack == "xla":
        from planc.backends.xla.runtime import start_up

        start_up.prepare_environment(devices)
        import jax  # noqa: F401
        import optax  # noqa: F401

        import planc.backends.xla.runtime.session

        start_up.prepare_environment = lambda devices: None
    else:
        import torch.distributed.fsdp  # noqa: F401

        import planc.backends.cuda.runtime.start_up  # noqa: F401
    _prctl(CHILD_SUBREAPER, 1)


def import_as(names: Sequence[str]) -> None:
    """Import modules that an earlier run needed on its way, so that later forks have them."""
    for name in names:
        if name not in sys.modules:
            with suppress(Exception):  # some are made by others as they are imported
                import_module(name)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


@dataclass
class Planted:
    """One process of a run counts its calls, and one of them fails."""

    who: str
    fault: AnyFault
    logs: Path
    """A folder for the log of each process' calls, or of the lines that it ran."""

    def __call__(self, who: str) -> Any:
        log = self.logs / who.replace(" ", "-")
        if isinstance(self.fault, LineFault):
            if self.fault.line and who != self.who:
                return ExitStack()
            return CountedLines(self.fault if self.fault.line else None, log.with_suffix(".lines")).installed()
        if isinstance(self.fault, SocketFault):
            return counted_sockets(self.fault if who == self.who else NO_SOCKET, log.with_suffix(".sockets"))
        return CountedCalls(self.fault if who == self.who else NO_FAULT, log.with_suffix(".calls")).installed()


def no_plant(_who: str) -> Any:
    return ExitStack()


class Forked:
    """A fork of this process that runs `main` in a session of its own; as much of `subprocess.Popen` as is needed."""

    def __init__(self, main: Callable[[], int], environ: Mapping[str, str], *, dies_with_parent: bool) -> None:
        read, write = os.pipe()
        parent = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            _run(main, environ, write, parent if dies_with_parent else 0)
        os.close(write)
        self.stdout = os.fdopen(read, "r", errors="replace")
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        limit = float("inf") if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > limit:
                raise subprocess.TimeoutExpired("fork", timeout or 0)
            time.sleep(0.005)
        assert self.returncode is not None
        return self.returncode

    def printed(self) -> str:
        """The output since the last call, without waiting."""
        found = b""
        os.set_blocking(self.stdout.fileno(), False)
        with suppress(BlockingIOError):
            while block := os.read(self.stdout.fileno(), 1 << 16):
                found += block
        return found.decode(errors="replace")

    def terminate(self) -> None:
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    def _send(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


def _run(main: Callable[[], int], environ: Mapping[str, str], output: int, parent: int) -> NoReturn:
    """The child's life: nothing of the parent's but what it has imported."""
    status = 70
    try:
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.default_int_handler)
        if parent:
            _prctl(PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.closerange(3, 512)
        sys.stdout = os.fdopen(1, "w", buffering=1, errors="replace", closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, errors="replace", closefd=False)
        os.environ.clear()
        os.environ.update(environ)
        tempfile.tempdir = None
        atexit._clear()
        status = main()
        sys.stdout.flush()
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
        status = 1
    finally:
        atexit._run_exitfuncs()
        os._exit(status)


@dataclass
class Command:
    """`planc WORDS` in a fork whose ranks are forks of it."""

    words: Sequence[str]
    environ: dict[str, str] = field(default_factory=dict)
    plant: Plant = no_plant

    def start(self) -> Forked:
        environ = {**os.environ, "PYTHONUNBUFFERED": "1", **self.environ}
        return Forked(self._launcher, environ, dies_with_parent=False)

    def _launcher(self) -> int:
        from planc import cli
        from planc.trainer.run import launch

        names = SimpleNamespace(**{n: getattr(subprocess, n) for n in ("PIPE", "STDOUT", "DEVNULL")}, Popen=self._rank)
        pytest.MonkeyPatch().setattr(launch, "subprocess", names)
        with self.plant(LAUNCHER):
            return cli.main(list(self.words))

    def _rank(self, argv: Sequence[str], *, env: Mapping[str, str], **_streams: Any) -> Forked:
        words = list(argv)[list(argv).index("planc.trainer.run.worker") + 1 :]

        def main() -> int:
            from planc.trainer.run import worker

            with self.plant(f"rank {env['RANK']}"):
                status = worker.main(words)
            if MODULES in env:
                Path(env[MODULES]).write_text("\n".join(sys.modules))
            return status

        return Forked(main, env, dies_with_parent=True)


class Forks:
    """Runs of `planc train` in forks of this process."""

    def __init__(self, root: Path) -> None:
        self._modules = root / "modules"
        self._compiled = root / "compiled"

    def prepare(self, stack: str) -> None:
        """Import the framework; XLA keeps what it compiles."""
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(self._compiled)
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
        os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
        prepare(stack, 2)

    def start(
        self, place: Place, words: Sequence[str], who: str = "", fault: AnyFault = NO_FAULT, plant: Plant | None = None
    ) -> Forked:
        """`planc train` on the preset of `place`. `plant`: instead of the fault."""
        target = ["train", str(place.preset), "--target", place.site.stack, "--receipt", str(place.receipt)]
        environ = {**place.environ, MODULES: str(self._modules)}
        return Command([*target, *words], environ, plant or Planted(who, fault, place.logs)).start()

    def run(self, place: Place, words: Sequence[str], who: str, fault: AnyFault) -> tuple[int | None, str]:
        """Train: the status, None if it does not end in time, and what was printed."""
        return ended(self.start(place, words, who, fault))

    def learn(self, place: Place) -> None:
        """Import what the ranks of the first run have imported."""
        import_as(self._modules.read_text().splitlines())

    def orphans(self) -> list[int]:
        """Processes that a command left: they are this process's children now. They are ended after some time."""
        limit = time.monotonic() + LEFT_WITHIN_S
        while left := children(os.getpid()):
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            if time.monotonic() > limit:
                for pid in left:
                    with suppress(OSError):
                        os.kill(pid, signal.SIGKILL)
                        os.waitpid(pid, 0)
                return left
            time.sleep(0.01)
        return []


def ended(process: Forked, within_s: float = ENDS_WITHIN_S) -> tuple[int | None, str]:
    """How a command ended, None if it had to be killed, and what it printed."""
    limit = time.monotonic() + within_s
    found = ""
    while process.poll() is None and time.monotonic() < limit:
        found += process.printed()
        time.sleep(0.005)
    status = process.poll()
    if status is None:
        process.kill()
        process.wait()
    found += process.printed()
    process.stdout.close()
    return status, found


def children(pid: int) -> list[int]:
    """Processes that `pid` has started (Linux)."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found += map(int, task.read_text().split())
    return found
