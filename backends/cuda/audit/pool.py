"""Traces in processes of their own, each from one that has loaded torch already.

DTensor remembers meshes for as long as a process lives, and with them the groups of an earlier trace.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from multiprocessing.context import BaseContext
from os import cpu_count

from planc.backends.cuda.audit.trace import Traced, trace
from planc.ir.program import Program


def traces(program: Program, stages: list[int]) -> list[Traced]:
    """One trace for each of the pipeline `stages`, as many at a time as there are cores."""
    workers = max(1, min(len(stages), cpu_count() or 1))
    with ProcessPoolExecutor(workers, mp_context=_context(), max_tasks_per_child=1) as pool:
        return list(pool.map(trace, [program] * len(stages), stages))


@cache
def _context() -> BaseContext:
    context = get_context("forkserver")
    context.set_forkserver_preload(["planc.backends.cuda.audit.trace"])
    return context
