"""The launch runner with dummy ranks: environment, failures, and no orphan after any ending."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from planc.trainer.run import launch

SLEEPER = (
    "import os, pathlib, time; "
    "pathlib.Path('{folder}', os.environ['RANK']).write_text(str(os.getpid())); "
    "time.sleep(60)"
)
NESTED = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"


def python(code: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", code, *arguments]


def test_every_rank_gets_torchruns_environment() -> None:
    names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "OMP_NUM_THREADS"]
    names.append("EXTRA")
    code = f"import os; print(*(os.environ[n] for n in {names}))"
    lines: list[tuple[int, str]] = []
    done = launch.run(
        python(code),
        2,
        env={"EXTRA": "x"},
        timeout_s=30,
        on_line=lambda rank, line: lines.append((rank, line)),
    )
    assert done.ok
    assert done.outputs == ("0 0 2 2 127.0.0.1 1 x\n", "1 1 2 2 127.0.0.1 1 x\n")
    assert sorted(lines) == [(0, "0 0 2 2 127.0.0.1 1 x"), (1, "1 1 2 2 127.0.0.1 1 x")]


def test_ranks_agree_on_a_free_port() -> None:
    done = launch.run(python("import os; print(os.environ['MASTER_PORT'])"), 3, timeout_s=30)
    assert len(set(done.outputs)) == 1
    assert int(done.outputs[0]) > 0


def test_one_failure_ends_the_others(tmp_path: Path) -> None:
    code = f"import os, sys\nif os.environ['RANK'] == '1': print('mine'); sys.exit(7)\n{SLEEPER}"
    done = launch.run(python(code.format(folder=tmp_path)), 3, timeout_s=30)
    assert (done.returncode, done.failed_rank) == (7, 1)
    assert done.outputs[1] == "mine\n"
    assert_gone(tmp_path)


def test_an_error_of_the_listener_ends_all_ranks_and_is_raised() -> None:
    """`planc train | head`: the ranks must not wait for a reader that is gone."""

    def closed(_rank: int, _line: str) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        launch.run(python("while True: print('x' * 1000)"), 2, timeout_s=30, on_line=closed)


def test_timeout_ends_all_with_what_they_started(tmp_path: Path) -> None:
    done = launch.run(python(NESTED, SLEEPER.format(folder=tmp_path)), 2, timeout_s=3)
    assert done.returncode == launch.TIMED_OUT
    assert len(started(tmp_path)) == 2
    assert_gone(tmp_path)


def test_a_rank_that_ignores_sigterm_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "GRACE_S", 0.3)
    stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SLEEPER
    assert launch.run(python(stubborn.format(folder=tmp_path)), 1, timeout_s=1).returncode == launch.TIMED_OUT
    assert_gone(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_ending_the_launcher_leaves_no_orphan(tmp_path: Path, number: signal.Signals) -> None:
    if number == signal.SIGKILL and sys.platform != "linux":
        pytest.skip("a child ends with a parent that is killed on Linux alone (prctl)")
    argv = python(SLEEPER.format(folder=tmp_path))
    code = f"import sys; from planc.trainer.run import launch; sys.exit(launch.run({argv!r}, 2).returncode)"
    parent = subprocess.Popen(python(code))
    wait_until(lambda: len(started(tmp_path)) == 2)
    parent.send_signal(number)
    assert parent.wait(timeout=20) == (-signal.SIGKILL if number == signal.SIGKILL else 130)
    assert_gone(tmp_path)


def started(folder: Path) -> list[int]:
    """Process ids the sleepers wrote."""
    texts = [path.read_text() for path in folder.iterdir()]
    return [int(text) for text in texts if text]


def assert_gone(folder: Path) -> None:
    for pid in started(folder):
        wait_until(lambda pid=pid: not alive(pid))


def alive(pid: int) -> bool:
    """True if the process runs. A zombie that init has yet to collect does not."""
    try:
        os.kill(pid, 0)
        stat = Path(f"/proc/{pid}/stat")
        return not (stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z")
    except (ProcessLookupError, FileNotFoundError):
        return False


def wait_until(condition, timeout_s: float = 20.0) -> None:  # type: ignore[no-untyped-def]
    limit = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < limit, "timed out"
        time.sleep(0.05)
