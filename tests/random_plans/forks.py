"""The processes that train one plan: forks of one that has loaded the stack, so that starting them costs no import.

A plan has its processes to itself. Whatever it leaves behind, raises or waits for ends with them.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from planc.trainer.run.launch import leave

Row = dict[str, Any]
ROW = "row.json"
LATE = "Timeout ("
"""The words that faulthandler writes before it ends a process that is late."""
DIE_WITH_PARENT = 1
"""PR_SET_PDEATHSIG of Linux's prctl."""


def forked(ranks: int, work: Callable[[int], Row], folder: Path, late_s: float) -> Row:
    """The row that `work` returns on rank 0 of `ranks` forks of this process, with `cpu_s` of all of them.

    When a rank raises, or takes longer than `late_s` of wall time, the others are ended, and the row has its output
    as `failed` or `late`.
    """
    sys.stdout.flush()
    running = {_fork(rank, work, folder, late_s): rank for rank in range(ranks)}
    failed, cpu_s = None, 0.0
    while running:
        pid, status, used = os.wait4(-1, 0)
        rank = running.pop(pid)
        cpu_s += used.ru_utime + used.ru_stime
        if status and failed is None:
            failed = rank
            for other in running:
                os.kill(other, signal.SIGKILL)
    if failed is None:
        return {**json.loads((folder / ROW).read_text()), "cpu_s": cpu_s}
    output = _output(folder, failed).read_text(errors="replace")[-6000:]
    return {"late" if LATE in output else "failed": output or f"rank {failed} was ended", "cpu_s": cpu_s}


def _output(folder: Path, rank: int) -> Path:
    return folder / f"{rank}.txt"


def _fork(rank: int, work: Callable[[int], Row], folder: Path, late_s: float) -> int:
    pid = os.fork()
    if pid == 0:
        _be(rank, work, folder, late_s)
    return pid


def _be(rank: int, work: Callable[[int], Row], folder: Path, late_s: float) -> NoReturn:
    """The life of a fork: nothing of it comes back to the caller's frames."""
    try:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
        sys.stdout = sys.stderr = output = _output(folder, rank).open("w", buffering=1)
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        faulthandler.dump_traceback_later(late_s, exit=True)
        row = work(rank)
        if rank == 0:
            (folder / ROW).write_text(json.dumps(row))
        leave(0)
    except BaseException:
        traceback.print_exc()
        leave(1)
