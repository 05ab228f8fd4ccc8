"""Code that is allowed to run (`planc.allowed`): hostile scripts, each held where the system has namespaces."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from planc.allowed import Allowance, Ended, run_allowed

pytestmark = pytest.mark.launch
LIMITS = Allowance(time_s=1.0, memory_bytes=200 * 2**20, processes=16, output_bytes=10_000, answer_bytes=100_000)
ENDED_WITHIN_S = 25.0
"""Enough on a loaded machine; the limits above are far below."""
SECRET = "planc-test-secret"
PYTHON = "python:"
"""Begins a script of Python; others are for bash."""


@dataclass(frozen=True)
class Script:
    """A hostile script, and what is left of it: the limit that ended it, or what it could print."""

    text: str
    why: str = ""
    says: str | None = None


SCRIPTS = {
    "fork bomb": Script(":(){ :|:& };:; sleep 60", "more than 16 processes"),
    "fork bomb of Python": Script(PYTHON + "import os\nwhile True: os.fork()", "more than 16 processes"),
    "many sleepers": Script("for i in {1..40}; do sleep 60 & done; wait", "more than 16 processes"),
    "endless output": Script("yes", "printed more than 10,000 bytes"),
    "endless errors": Script("yes >&2", "printed more than 10,000 bytes"),
    "output without lines": Script("cat /dev/zero", "printed more than 10,000 bytes"),
    "output of children": Script("(yes & yes & yes &) ; sleep 60", "printed more than 10,000 bytes"),
    "endless loop": Script("while :; do :; done", "longer than 1 s"),
    "sleep": Script("sleep 1000", "longer than 1 s"),
    "ignored signals": Script("trap '' TERM INT HUP QUIT CHLD; while :; do sleep 9; done", "longer than 1 s"),
    "a stopped process": Script("kill -STOP $$", "longer than 1 s"),
    "a background process": Script("sleep 1000 & echo started", says="started"),
    "a session of its own": Script("setsid nohup sleep 1000 >/dev/null 2>&1 & echo started", says="started"),
    "a daemon": Script(
        PYTHON + "import os, time\nif os.fork() == 0:\n os.setsid()\n if os.fork() == 0:\n  os.closerange(0, 99)\n"
        "  time.sleep(1000)\n os._exit(0)\nprint('started')",
        says="started",
    ),
    "a child that holds the output": Script("(trap '' TERM; exec sleep 1000) & echo started", says="started"),
    "memory": Script(PYTHON + "x = bytearray(2**30)\nprint('held')", says=None),
    "memory of many": Script(
        'for i in {1..8}; do "$PYTHON" -S -c \'x = b"1" * (90 * 2**20); import time; time.sleep(60)\' & done; wait',
        "memory",
    ),
    "a file outside": Script('echo x > "$OUTSIDE/new" || echo refused', says="refused"),
    "a file changed": Script('echo x >> "$OUTSIDE/kept" || echo refused', says="refused"),
    "a file removed": Script('rm -rf "$OUTSIDE" 2>/dev/null; ls "$OUTSIDE"', says="kept"),
    "a file moved": Script('mv "$OUTSIDE/kept" ~ 2>/dev/null; ls "$OUTSIDE"', says="kept"),
    "rights changed": Script('chmod 777 "$OUTSIDE/kept" || echo refused', says="refused"),
    "a file of the system": Script("echo x > /usr/planc-test || echo refused", says="refused"),
    "a remount": Script("mount -o remount,rw / 2>/dev/null || echo refused", says="refused"),
    "namespaces of its own": Script(
        "unshare -Urm sh -c 'mount -o remount,rw / && touch /usr/planc-test' 2>/dev/null || echo refused",
        says="refused",
    ),
    "a setting of the kernel": Script("echo 1 > /proc/sys/kernel/sysrq || echo refused", says="refused"),
    "devices": Script("ls /dev | grep -E '^(sd|vd|nvme|kmsg|mem|tty)' || echo none", says="none"),
    "a device of its own": Script("mknod ~/disk b 8 0 2>/dev/null || echo refused", says="refused"),
    "services' sockets": Script("ls /run | wc -l", says="0"),
    "a full folder": Script("head -c 2000000 /dev/zero > ~/big; wc -c < ~/big", says="100000"),
    "a deep folder": Script('for i in {1..3000}; do echo -n d/; done | xargs -0 mkdir -p; echo "made"', says="made"),
    "a large answer": Script('head -c 2000000 /dev/zero > "$PLANC_ANSWER"; echo over', says="over"),
    "an answer that is a link": Script('ln -sf /etc/passwd "$PLANC_ANSWER" || echo refused', says="refused"),
    "an answer that is a pipe": Script('rm -f "$PLANC_ANSWER" && mkfifo "$PLANC_ANSWER"; echo tried', says="tried"),
    "a signal to planc": Script("kill -9 $PLANC_PID || echo refused", says="refused"),
    "a signal to all": Script("trap '' TERM; kill -TERM -1; sleep 0.1; echo here", says="here"),
    "a signal to the watcher": Script("kill -9 $PPID; sleep 0.1; echo here", says="here"),
    "the memory of planc": Script("cat /proc/$PLANC_PID/environ || echo refused", says="refused"),
    "secrets of the environment": Script("env | grep -c planc-test-secret", says="0"),
    "secrets of other processes": Script("cat /proc/[0-9]*/environ 2>/dev/null | grep -ac planc-test-secret", says="0"),
    "a socket of this machine": Script(
        PYTHON + "import os, socket\ntry: socket.create_connection(('127.0.0.1', int(os.environ['PORT'])), 1)\n"
        "except OSError: print('refused')",
        says="refused",
    ),
    "a network": Script(
        PYTHON + "import socket\ntry: socket.create_connection(('192.0.2.1', 9), 1)\n"
        "except OSError as e: print('refused', e.errno)",
        says="refused 101",
    ),
    "a name that must be asked for": Script("getent hosts example.org || echo refused", says="refused"),
    "an abstract socket": Script(
        PYTHON + "import os, socket\ntry: socket.socket(socket.AF_UNIX).connect('\\0planc' + os.environ['PORT'])\n"
        "except OSError: print('refused')",
        says="refused",
    ),
    "handles that it was not given": Script("ls /proc/self/fd | tr '\\n' ' '", says="0 1 2 3"),
    "a report of its own": Script('for n in {3..20}; do eval "echo {} >&$n" 2>/dev/null; done; echo done', says="done"),
    "the terminal": Script("test -c /dev/tty || echo refused", says="refused"),
    "rights by a program": Script("grep -E 'NoNewPrivs:.1|CapEff:.0+$' /proc/self/status | wc -l", says="2"),
    "input": Script("cat", says="given"),
}


def namespaces() -> bool:
    return not run_allowed(["true"]).open_walls


@pytest.fixture(scope="module", autouse=True)
def walls() -> None:
    if not namespaces():
        pytest.skip("this system refuses namespaces")


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """A port of this machine, and an abstract socket of its number, that answer."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as local:
        number = int(server.getsockname()[1])
        local.bind(f"\0planc{number}")
        local.listen()
        yield number


def run(text: str, folder: Path, port: int = 0, *, namespaces: bool = True, limits: Allowance = LIMITS) -> Ended:
    script = text.removeprefix(PYTHON)
    argv = [sys.executable, "-I", "-S", "-c", script] if script != text else ["bash", "-c", script]
    env = {"OUTSIDE": str(folder), "PLANC_PID": str(os.getpid()), "PORT": str(port), "MARK": str(folder)}
    env["PYTHON"] = sys.executable  # one process, where a `python3` on the path may be a script that starts others
    return run_allowed(argv, given=b"given", env=env, limits=limits, namespaces=namespaces)


def left(mark: str) -> list[int]:
    """The processes of this machine with the variable MARK of a run."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"MARK={mark}".encode() in entry.read_bytes().split(b"\0"):
                found.append(int(entry.parent.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_hostile_script_is_held(name: str, tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", SECRET)
    kept = tmp_path / "kept"
    kept.write_text("kept")
    kept.chmod(0o600)
    begun, script = time.monotonic(), SCRIPTS[name]
    ended = run(script.text, tmp_path, port)
    assert time.monotonic() - begun < ENDED_WITHIN_S
    assert left(str(tmp_path)) == []
    assert [p.name for p in tmp_path.iterdir()] == ["kept"]
    assert kept.read_text() == "kept" and kept.stat().st_mode & 0o777 == 0o600
    assert not Path("/usr/planc-test").exists()
    assert script.why in ended.why and bool(script.why) == bool(ended.why) and ended.open_walls == ()
    assert len(ended.answer) <= LIMITS.answer_bytes and len(ended.output) <= LIMITS.output_bytes
    if script.says is not None:
        assert ended.output.strip().splitlines()[-1] == script.says
    elif not script.why:
        assert ended.status > 0


HELD_WITHOUT = (
    "many sleepers", "endless output", "a background process", "secrets of the environment",
    *(pytest.param(name, marks=pytest.mark.long) for name in ("a session of its own", "a daemon", "a large answer")),
    *(pytest.param(name, marks=pytest.mark.long) for name in ("a child that holds the output", "ignored signals")),
)  # fmt: skip


@pytest.mark.parametrize("name", HELD_WITHOUT)
def test_what_is_held_where_the_system_has_no_namespaces(name: str, tmp_path: Path) -> None:
    script = SCRIPTS[name]
    ended = run(script.text, tmp_path, namespaces=False)
    assert left(str(tmp_path)) == [] and len(ended.open_walls) == 3
    assert script.why in ended.why and bool(script.why) == bool(ended.why)
    assert script.says is None or ended.output.strip().splitlines()[-1] == script.says


@pytest.mark.parametrize("namespaces", [True, False])
def test_it_ends_with_planc(namespaces: bool, tmp_path: Path) -> None:
    env = {"MARK": str(tmp_path)}
    text = f"from planc.allowed import *; run_allowed(['bash', '-c', 'setsid sleep 1000 & sleep 1000'], env={env!r}, "
    planc = subprocess.Popen([sys.executable, "-c", f"{text} namespaces={namespaces})"])
    end = time.monotonic() + ENDED_WITHIN_S
    while len(left(str(tmp_path))) < 3 and time.monotonic() < end:
        time.sleep(0.02)
    planc.send_signal(signal.SIGKILL)
    planc.wait()
    while left(str(tmp_path)) and time.monotonic() < end:
        time.sleep(0.02)
    assert left(str(tmp_path)) == []


def test_its_answer_status_and_folder_are_its_own(tmp_path: Path) -> None:
    ended = run('pwd; echo "$HOME"; echo data > "$PLANC_ANSWER"; exit 7', tmp_path)
    assert (ended.status, ended.answer, ended.why) == (7, b"data\n", "")
    cwd, home = ended.output.split()
    assert cwd == home and not Path(home).parent.exists()
    assert run("no-such-program-here", tmp_path).status == 127
    assert run("ulimit -c; kill -ABRT $$", tmp_path).status == -signal.SIGABRT


def test_what_needs_walls_is_not_started_without_them(tmp_path: Path) -> None:
    made = tmp_path / "made"
    ended = run_allowed(["touch", str(made)], namespaces=False, walled=True)
    assert (ended.why, len(ended.open_walls), made.exists()) == ("it was not started", 3, False)
