"""Connections that are cut: the n-th call of a TCP socket fails, whoever makes it: planc, gloo, torch's store.

`sockets.c` stands between a process and the C library. It must be loaded with LD_PRELOAD as Python starts:
`with_shim` starts a script again with it.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("sockets.c")
ERRORS = ("ECONNRESET", "EPIPE", "ETIMEDOUT")


@dataclass(frozen=True)
class SocketFault:
    """The `number`-th call (from 1) fails with `error`, one of ERRORS; 0: none does."""

    number: int
    error: str = "ECONNRESET"


NO_SOCKET = SocketFault(0)
"""Calls are counted alone."""


def with_shim() -> None:
    """Make the shim and start this script again with it, unless it is loaded."""
    if hasattr(ctypes.CDLL(None), "sockets_arm"):
        return
    library = Path(tempfile.mkdtemp(prefix="planc-sockets-")) / "sockets.so"
    compiler = ["cc", "-O2", "-Wall", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"]
    subprocess.run(compiler, check=True)
    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "LD_PRELOAD": str(library)})


@contextmanager
def counted_sockets(fault: SocketFault, log: Path) -> Iterator[None]:
    """Within, calls of sockets of this process are counted; the count, or the call that failed, is written to `log`."""
    shim = ctypes.CDLL(None)
    shim.sockets_arm(ctypes.c_long(fault.number), getattr(errno, fault.error), os.fsencode(log))
    try:
        yield
    finally:
        count = shim.sockets_disarm()
        if not log.exists():
            log.write_text(json.dumps(count))


def drawn(calls: int, dice: random.Random) -> SocketFault:
    """One of so many calls, and an error."""
    return SocketFault(dice.randrange(calls) + 1, dice.choice(ERRORS))
