"""Compiles a program in a child process with a time limit, and caches the compiler's answer by content."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from planc.cache import cache_folder
from planc.diag import Diagnostic, PlanError
from planc.diag.fast_dataclass import dataclass
from planc.ir.plan import Plan

TIMEOUT_S = 900.0
GIB = 2.0**30
SHOWN = 400
"""Characters of an unexpected answer that a message quotes."""
_WANTED = re.compile(r"\(([\d.]+)([KMGT]?)\)? *exceeds|Used ([\d.]+)([KMGT]?) of|requires ([\d.]+)([KMGT]?)")
_UNITS = {"": 1.0, "K": 2.0**10, "M": 2.0**20, "G": 2.0**30, "T": 2.0**40}


@dataclass(frozen=True, kw_only=True)
class CompilerAnswer:
    """The compiler's answer. If the program does not fit in memory, `refused` is a message and there is no HLO."""

    topology: str
    """"" for virtual CPU devices."""
    on_torus: bool | None
    """True if the mesh follows the links of the torus; None on virtual devices."""
    options: dict[str, str]
    versions: dict[str, str]
    compile_s: float
    peak_bytes: int | None
    """The compiler's `peak_memory_in_bytes` without the arguments in host memory, which it includes; or the bytes that
    a refused program would need."""
    host_bytes: int = 0
    """Bytes in host memory: arguments and temporaries."""
    refused: str = ""
    hlo: str = ""


def compiled(plan: Plan, topology: str, timeout_s: float = TIMEOUT_S) -> CompilerAnswer:
    """Compile the step of `plan` for a TPU `topology` such as `v5p:4x4x4`, or if "", for virtual CPU devices.

    Raises PlanError if there is no compiler, no answer within `timeout_s` seconds, or a compile error.
    """
    if topology and find_spec("libtpu") is None:
        message = f"an audit on {topology} asks libtpu, the compiler of TPUs, which is not installed"
        raise PlanError([Diagnostic("E1009", message, plan.cluster.cause.span, help="pip install 'planc[tpu]'")])
    with tempfile.TemporaryDirectory(prefix="planc-audit-") as name:
        folder = Path(name)
        (folder / "plan.json").write_text(plan.canonical())
        request = {"topology": topology, "folder": str(cache_folder() / "audits")}
        (folder / "request.json").write_text(json.dumps(request))
        _run_worker(plan, topology, folder, timeout_s)
        path = Path(json.loads((folder / "answer.json").read_text())["path"])
        return _answer(topology, path)


def _run_worker(plan: Plan, topology: str, folder: Path, timeout_s: float) -> None:
    """Run the worker process in `folder`. Kill it with its children, and raise PlanError, after `timeout_s` seconds."""
    where = topology or "virtual CPU devices"
    with (folder / "said").open("w+") as note:
        child = subprocess.Popen(
            _command(folder),
            stdout=note,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            message = f"the compiler gave no answer for {where} in {timeout_s:g} s"
            help = "--timeout-s allows more; nothing is said about the plan"
            raise PlanError([Diagnostic("E0903", message, plan.mesh.cause.span, help=help)]) from None
        finally:
            if child.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        if status:
            note.seek(0)
            raise PlanError([_failed(plan, where, note.read())])


def _command(folder: Path) -> list[str]:
    return [sys.executable, "-P", "-m", "planc.backends.xla.audit.worker", str(folder)]


def _failed(plan: Plan, where: str, note: str) -> Diagnostic:
    """Return the diagnostic of a failed compile for the topology `where`; `note` is the worker's output."""
    last = next((line for line in reversed(note.splitlines()) if line.strip()), "it said nothing")
    code = "E0902" if "topology" in last.lower() else "E0904"
    return Diagnostic(code, f"the compiler failed on {where}: {last[:SHOWN]}", plan.cluster.cause.span)


def _answer(topology: str, path: Path) -> CompilerAnswer:
    answer: dict[str, Any] = json.loads(path.read_text())
    refused, memory = answer.get("refused", ""), answer.get("memory", {})
    text = path.with_suffix(".hlo.gz")
    return CompilerAnswer(
        topology=topology,
        on_torus=answer["on_torus"],
        options=answer["options"],
        versions=answer["versions"],
        compile_s=answer["compile_s"],
        peak_bytes=needed_bytes(refused) if refused else memory["peak_memory"] - memory.get("host_argument_size", 0),
        host_bytes=sum(memory.get(f"host_{kind}_size", 0) for kind in ("argument", "temp")),
        refused=refused,
        hlo="" if refused else gzip.decompress(text.read_bytes()).decode(),
    )


def needed_bytes(message: str) -> int | None:
    """Return the bytes that a program needs according to a RESOURCE_EXHAUSTED `message`; None if it states none."""
    found = _WANTED.search(message)
    if found is None:
        return None
    number, unit = next((found[i], found[i + 1]) for i in (1, 3, 5) if found[i])
    return round(float(number) * _UNITS[unit])
