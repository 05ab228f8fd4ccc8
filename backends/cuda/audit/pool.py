"""Runs traces in separate processes, forked from a process that has loaded torch, and caches the results by content.

Each trace needs a new process, because DTensor caches meshes and their process groups for the lifetime of a process.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from multiprocessing import get_context
from multiprocessing.context import BaseContext
from os import cpu_count
from pathlib import Path
from typing import Any

from planc.backends.cuda.audit.traced import Traced, UnlikeError
from planc.cache import cache_folder
from planc.files import write_atomically
from planc.ir.program_text import ProgramText

SOURCES = Path(__file__).parents[1]
"""Folder of all sources that determine a trace, besides the program and torch."""


def traces(
    program: ProgramText,
    stages: list[int],
    show: Callable[[str], None] = lambda text: None,
    source: Mapping[str, Any] | str | None = None,
) -> list[Traced]:
    """Returns one trace per pipeline stage in `stages`, run in parallel on all cores; `show` is called with the
    progress.

    The program runs the module built from `source` (a config, or the path of a function); None: planc's own module.
    Traces of the same program by the same torch are read from planc's cache. Raises ModuleNotFoundError without torch.
    """
    if find_spec("torch") is None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")
    found = {stage: saved for stage in stages if (saved := _read(program, stage)) is not None}
    left = [stage for stage in reversed(stages) if stage not in found]  # the last stage takes longest
    if left:
        workers = max(1, min(len(left), cpu_count() or 1))
        with (
            _without_the_working_directory(),
            ProcessPoolExecutor(workers, mp_context=_context(), max_tasks_per_child=1) as pool,
        ):
            futures = {pool.submit(_trace, program, stage, source): stage for stage in left}
            for future in as_completed(futures):
                traced = _with_all_run(pool, program, futures[future], future, source)
                found[traced.stage] = traced
                _save(program, traced)
                show(f"{len(found)} of {len(stages)} pipeline stages traced")
    return [found[stage] for stage in stages]


def _trace(program: ProgramText, stage: int, source: Any = None, whole: bool = False) -> Traced:
    from planc.backends.cuda.audit.trace import trace

    return trace(program, stage, whole=whole, source=source)


def _with_all_run(
    pool: ProcessPoolExecutor, program: ProgramText, stage: int, future: Future[Traced], source: Any
) -> Traced:
    """Returns the result of a trace. If microbatches or blocks that were assumed to be identical differ, traces again
    and runs all of them."""
    try:
        return future.result()
    except UnlikeError:
        return pool.submit(_trace, program, stage, source, True).result()


def _read(program: ProgramText, stage: int) -> Traced | None:
    path = _path(program, stage)
    if path is not None:
        with suppress(OSError, ValueError, KeyError, TypeError):
            return Traced.from_json(json.loads(path.read_text()))
    return None


def _save(program: ProgramText, traced: Traced) -> None:
    path = _path(program, traced.stage)
    if path is not None:
        path.parent.mkdir(exist_ok=True)
        write_atomically(path, json.dumps(traced.to_json()))


def _path(program: ProgramText, stage: int) -> Path | None:
    """Returns the cache file of a trace; None for a user's own model, whose code is unknown."""
    try:
        torch = version("torch")
    except PackageNotFoundError:
        return None
    if not (SOURCES / "models" / f"{program.plan.model.family}.py").is_file():
        return None
    facts = [program.text, program.plan.sha256, stage, torch, _sources()]
    return cache_folder() / "audits" / f"cuda-{hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]}.json"


@cache
def _sources() -> str:
    """Returns a hash of all source files of the cuda backend."""
    files = sorted(SOURCES.rglob("*.py"))
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()


@contextmanager
def _without_the_working_directory() -> Iterator[None]:
    """A context in which new Python processes import nothing from the working directory."""
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONSAFEPATH"]
        else:
            os.environ["PYTHONSAFEPATH"] = before


@cache
def _context() -> BaseContext:
    context = get_context("forkserver")
    context.set_forkserver_preload(["planc.backends.cuda.audit.trace"])
    return context
