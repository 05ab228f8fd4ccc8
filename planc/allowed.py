"""Runs a command that may be a stranger's, behind walls: `--allow-code` alone does so.

The file is also the program that stands between planc and the command. It asks the system for namespaces of their own
(network, processes, mounts), starts the command there, watches it, and ends all that is left of it. Where the system
refuses them, it says so, and finds what it must end as its descendants.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

PASSED = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "TZ")
"""Variables of the user's environment that the command sees."""
ANSWER = "PLANC_ANSWER"
"""The variable with the path of the one file outside its HOME that the command can write."""
GRACE_S = 10.0
"""Seconds after the time limit in which the watcher must have ended the command."""
POLL_S = 0.02
HOME_BYTES, HOME_FILES = 256 * 2**20, 50_000
WALLS = ("the network", "files outside its folder", "other processes")


@dataclass(frozen=True)
class Allowance:
    """Limits of a command, which is ended at the first of them."""

    time_s: float = 300.0
    memory_bytes: int = 16 * 2**30
    """Data of a process, and memory of all."""
    processes: int = 64
    output_bytes: int = 2**20
    answer_bytes: int = 16 * 2**20
    """Largest file that it writes."""


@dataclass(frozen=True)
class Ended:
    """The results of a command that ended."""

    status: int
    """The exit status; negative: the signal that ended it."""
    output: str
    """The text that it printed, unescaped: see `printable`."""
    answer: bytes
    """The content of the file that `PLANC_ANSWER` names."""
    why: str
    """The limit that ended it; "" if none did."""
    open_walls: tuple[str, ...]
    """The members of `WALLS` that this system refused to build."""


def run_allowed(
    argv: Sequence[str],
    *,
    given: bytes = b"",
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    limits: Allowance | None = None,
    walled: bool = False,
    namespaces: bool = True,
) -> Ended:
    """Run the command `argv` with the standard input `given`, and return what it left; nothing of it still runs then.

    It sees the variables in `PASSED` and `env`, an empty folder as HOME, which is gone afterwards, and `cwd` (None:
    that folder). It can read what the user can. With `walled` it is not started unless all of `WALLS` stand.
    `namespaces` False: as where the system has none.
    """
    limits = limits or Allowance()
    with _folder() as folder:
        home, answer = folder / "home", folder / "answer"
        for made in (home, folder / "dev"):
            made.mkdir()
        answer.touch()
        (folder / "given").write_bytes(given)
        request = {
            "argv": list(argv), "cwd": str(cwd or home), "folder": str(folder), "namespaces": namespaces,
            "walled": walled, "path": sys.path, **asdict(limits),
        }  # fmt: skip
        own = {"HOME": str(home), "TMPDIR": str(home), "USER": "nobody", ANSWER: str(answer), "OMP_NUM_THREADS": "1"}
        passed = {name: os.environ[name] for name in PASSED if name in os.environ}
        reader, writer = os.pipe()
        try:
            with (folder / "given").open("rb") as stdin:
                watcher = subprocess.Popen(
                    [sys.executable, "-I", "-S", __file__, json.dumps(request), str(writer)],
                    env={**passed, **own, **(env or {})},
                    stdin=stdin,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    pass_fds=(writer,),
                    start_new_session=True,
                )
            os.close(writer)
            output, why = _read(watcher, limits)
            walls, _, ending = os.read(reader, 65536).partition(b"\n")
            report = json.loads(ending or "{}")
        finally:
            os.close(reader)
        with suppress(OSError):
            from planc.files import read_bounded

            return Ended(
                status=report.get("status", -signal.SIGKILL),
                output=output.decode(errors="replace"),
                answer=read_bounded(answer, limits.answer_bytes),
                why=why or report.get("why", "it ended its watcher"),
                open_walls=tuple(json.loads(walls)) if walls else WALLS,
            )
        return Ended(-signal.SIGKILL, output.decode(errors="replace"), b"", "its answer is no file", WALLS)


@contextmanager
def _folder() -> Iterator[Path]:
    folder = tempfile.mkdtemp(prefix="planc-allowed-")
    try:
        yield Path(os.path.realpath(folder))
    finally:
        subprocess.run(["rm", "-rf", folder], stderr=subprocess.DEVNULL, check=False)  # of any depth


def _read(watcher: subprocess.Popen[bytes], limits: Allowance) -> tuple[bytes, str]:
    """Return what the command printed, and the limit at which it was ended; its watcher has ended then."""
    assert watcher.stdout is not None
    output, why, end = b"", "", time.monotonic() + limits.time_s + GRACE_S
    try:
        while not why:
            left = end - time.monotonic()
            if left <= 0 or not select.select([watcher.stdout], [], [], left)[0]:
                why = f"it ran longer than {limits.time_s:g} s"
            elif not (more := os.read(watcher.stdout.fileno(), 65536)):
                break
            elif len(output := output + more) > limits.output_bytes:
                output, why = output[: limits.output_bytes], f"it printed more than {limits.output_bytes:,} bytes"
    finally:
        with suppress(ProcessLookupError):
            watcher.terminate() if why or sys.exc_info()[0] else None
        try:
            watcher.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            watcher.kill()
            watcher.wait()
        watcher.stdout.close()
    return output, why


# From here on: the watcher, in a process of its own, with the standard library alone.

NEW_MOUNTS, NEW_IPC, NEW_USER, NEW_PIDS, NEW_NETWORK = 0x20000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
READ_ONLY, NO_SUID, NO_DEV, NO_EXEC, BIND, REC, PRIVATE = 1, 2, 4, 8, 0x1000, 0x4000, 0x40000
PDEATHSIG, SUBREAPER, NO_NEW_PRIVS = 1, 36, 38
MOUNT_SETATTR, OF_ALL_BELOW, HERE = 442, 0x8000, -100
DEVICES = ("null", "zero", "full", "random", "urandom")
NOBODY = 65534


def _watch_over(request: dict[str, Any], report: int) -> int:
    """Start the command that `request` describes, watch it, write to the pipe `report` how it ended, end the rest."""
    os.set_inheritable(report, False)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGCHLD})
    with suppress(AttributeError, OSError):  # root, whose processes no rlimit counts: wakes whatever else runs
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    for option, value in ((PDEATHSIG, signal.SIGTERM), (NO_NEW_PRIVS, 1), (SUBREAPER, 1)):
        _prctl(option, value)
    open_walls: list[str] = [*WALLS]
    if request["namespaces"] and _unshared():
        open_walls = []
        if first := os.fork():  # the first process of the new namespace, with which all others there end
            os.close(report)
            while signal.sigwait({signal.SIGTERM, signal.SIGCHLD}) == signal.SIGTERM:
                os.kill(first, signal.SIGKILL)
            return os.waitstatus_to_exitcode(os.waitpid(first, 0)[1])
        _prctl(PDEATHSIG, signal.SIGKILL)
        open_walls = _mounted(request)
    os.write(report, json.dumps(open_walls).encode() + b"\n")
    if request["walled"] and open_walls:
        status, why = -signal.SIGKILL, "it was not started"
    else:
        command = os.fork()
        if not command:
            _become(request, in_namespace=WALLS[0] not in open_walls)
        status, why = _watched(command, request)
    _end_all()
    os.write(report, json.dumps({"status": status, "why": why}).encode())
    return 0


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    with suppress(AttributeError):  # Linux alone has it
        _libc().prctl(option, value, 0, 0, 0)


def _unshared() -> bool:
    """Enter new namespaces. False if the system refuses them: all or none."""
    user, group = os.geteuid(), os.getegid()
    try:
        if _libc().unshare(NEW_USER | NEW_MOUNTS | NEW_IPC | NEW_PIDS | NEW_NETWORK):
            return False
        # Not root inside: a program that is started has no rights there either.
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{user or NOBODY} {user} 1"),
            ("gid_map", f"{group or NOBODY} {group} 1"),
        ):
            Path(f"/proc/self/{name}").write_text(text)
    except (AttributeError, OSError):
        return False
    return True


def _mounted(request: dict[str, Any]) -> list[str]:
    """Make all files read-only but the HOME (in memory) and the answer, and show only the namespace's processes and
    harmless devices. Return the walls that the system refused."""
    folder = Path(request["folder"])
    home, answer, devices = folder / "home", folder / "answer", folder / "dev"
    refused = []
    try:
        _mount("", "/", "", REC | PRIVATE)
        _mount(answer, answer, "", BIND)
        _set_read_only("/", OF_ALL_BELOW, read_only=True)
        _set_read_only(str(answer), 0, read_only=False)
        _mount("tmpfs", devices, "tmpfs", NO_SUID, "size=64m,mode=755")
        for name in DEVICES:
            (devices / name).touch()
            _mount(f"/dev/{name}", devices / name, "", BIND)
        for name, to in (("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
            (devices / name).symlink_to(f"/proc/self/{to}")
        (devices / "shm").mkdir()
        _mount(devices, "/dev", "", BIND | REC)
        needed = [request["cwd"], sys.executable, os.path.realpath(sys.executable), *request["path"]]
        if not any(f"{path}/".startswith("/run/") for path in [*needed, *os.environ.get("PATH", "").split(":")]):
            _mount("tmpfs", "/run", "tmpfs", NO_SUID, "size=1m,mode=755")  # sockets of the system's services
        _mount("tmpfs", home, "tmpfs", NO_SUID | NO_DEV, f"size={HOME_BYTES},nr_inodes={HOME_FILES},mode=700")
    except OSError:
        refused.append(WALLS[1])
    try:
        _mount("proc", "/proc", "proc", READ_ONLY | NO_SUID | NO_DEV | NO_EXEC)
    except OSError:
        refused.append(WALLS[2])
    return refused


def _mount(what: str | Path, where: str | Path, kind: str, flags: int, options: str = "") -> None:
    words = [str(word).encode() or None for word in (what, where, kind)]
    if _libc().mount(*words, ctypes.c_ulong(flags), options.encode() or None):
        raise OSError(ctypes.get_errno(), f"mount {where}")


def _set_read_only(path: str, flags: int, *, read_only: bool) -> None:
    attributes = (ctypes.c_uint64 * 4)(READ_ONLY if read_only else 0, 0 if read_only else READ_ONLY, 0, 0)
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    if _libc().syscall(MOUNT_SETATTR, HERE, path.encode(), flags, ctypes.byref(attributes), size):
        raise OSError(ctypes.get_errno(), "mount_setattr")


def _become(request: dict[str, Any], *, in_namespace: bool) -> None:
    """Become the command, with its limits."""
    try:
        limits = {
            resource.RLIMIT_CPU: int(request["time_s"]) + 1,
            resource.RLIMIT_DATA: request["memory_bytes"],
            resource.RLIMIT_FSIZE: request["answer_bytes"],
            resource.RLIMIT_CORE: 0,
        }
        if in_namespace:  # elsewhere it counts all processes of the user
            limits[resource.RLIMIT_NPROC] = 2 * request["processes"]
        for limit, most in limits.items():
            hard = resource.getrlimit(limit)[1]
            resource.setrlimit(limit, (most, most) if hard == resource.RLIM_INFINITY else (min(most, hard),) * 2)
        with suppress(AttributeError):
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        os.chdir(request["cwd"])
        signal.pthread_sigmask(signal.SIG_SETMASK, set())
        os.execvp(request["argv"][0], request["argv"])
    except (OSError, ValueError) as error:
        os.write(2, f"{request['argv'][0]} cannot be started: {error}\n".encode())
    finally:
        os._exit(127)


def _watched(command: int, request: dict[str, Any]) -> tuple[int, str]:
    """Wait for the process `command`. Return its exit status, and the limit at which the wait was given up."""
    end = time.monotonic() + request["time_s"]
    while True:
        for pid, status in iter(_reaped, None):
            if pid == command:
                return status, ""
        alive = _descendants()
        if len(alive) > request["processes"]:
            return -signal.SIGKILL, f"it started more than {request['processes']} processes"
        if _resident_bytes(alive) > request["memory_bytes"]:
            return -signal.SIGKILL, f"it used more than {request['memory_bytes'] / 2**30:g} GiB of memory"
        if time.monotonic() > end:
            return -signal.SIGKILL, f"it ran longer than {request['time_s']:g} s"
        found = signal.sigtimedwait({signal.SIGTERM, signal.SIGCHLD}, POLL_S)
        if found is not None and found.si_signo == signal.SIGTERM:
            return -signal.SIGKILL, "it was stopped"


def _reaped() -> tuple[int, int] | None:
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return (pid, os.waitstatus_to_exitcode(status)) if pid else None


def _descendants() -> set[int]:
    """Return the processes that this one started, and those that they did; orphans come to this process."""
    parents: dict[int, list[int]] = {}
    with suppress(OSError):
        if os.readlink("/proc/self") != str(os.getpid()):
            return set()
    for entry in os.listdir("/proc") if os.path.isdir("/proc/self") else ():
        if entry.isdigit():
            with suppress(OSError):
                parent = int(Path(f"/proc/{entry}/stat").read_bytes().rpartition(b")")[2].split()[1])
                parents.setdefault(parent, []).append(int(entry))
    found, pending = set[int](), [os.getpid()]
    while pending:
        below = parents.get(pending.pop(), [])
        found.update(below)
        pending += below
    return found


def _resident_bytes(pids: set[int]) -> int:
    """Return the memory of the processes `pids`; what forks share counts once, where the system tells it."""
    total = sum(_kilobytes(f"/proc/{pid}/status", b"VmRSS:") for pid in pids) * 1024
    if total < 2**30 or len(pids) == 1:
        return total
    return sum(_kilobytes(f"/proc/{pid}/smaps_rollup", b"Pss:") for pid in pids) * 1024


def _kilobytes(path: str, field: bytes) -> int:
    with suppress(OSError):
        for line in Path(path).read_bytes().splitlines():
            if line.startswith(field):
                return int(line.split()[1])
    return 0


def _end_all() -> None:
    """End every descendant. They are stopped before, so that none starts another meanwhile."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        sent = set[int]()
        while more := _descendants() - sent:
            for pid in more:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
            sent |= more
    while _reaped():
        pass


if __name__ == "__main__":
    sys.exit(_watch_over(json.loads(sys.argv[1]), int(sys.argv[2])))
