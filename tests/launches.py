"""Launches that many tests share: one launch trains every case that this run of pytest asks of it.

A test of a case is marked `trained(launch, case)`, by `case()`, and reads its row from the fixture `row`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from planc.trainer.run.launch import run
from tests.rows import parity_rows, rows_of

TESTS = Path(__file__).resolve().parent
VERSIONS = TESTS.parent / ".venv-versions"
TORCH_XLA = TESTS.parent / ".venv-torch-xla" / "bin" / "python"
START_S, CASE_S = 300.0, 120.0
"""Longest time that a launch and one of its cases may take on a busy machine."""

Row = dict[str, Any]


class NoRow(Row):
    """The row of a case that its launch did not come to: a test that reads it fails with the launch's output."""

    def __init__(self, why: str) -> None:
        super().__init__()
        self.why = why

    def __missing__(self, key: str) -> Any:
        raise AssertionError(self.why)


@dataclass(frozen=True)
class Launch:
    """A worker that trains named layouts one after the other, and prints a row for each."""

    worker: Path
    processes: int = 1
    python: str = sys.executable
    parity: str = ""
    """The stack whose rows are kept for the page of `make parity`, where that is asked for."""

    def rows(self, names: list[str]) -> Callable[[str], Row]:
        """Train these layouts. A worker that ends early leaves the rows it printed: the other cases fail."""
        command = [self.python, str(self.worker), *names]
        finished = run(command, self.processes, timeout_s=START_S + CASE_S * len(names))
        text = finished.outputs[0]
        rows = parity_rows(self.parity, text) if self.parity else {row["name"]: row for row in rows_of(text)}
        output = finished.outputs[finished.failed_rank or 0][-4000:]

        def row(name: str) -> Row:
            if name in rows and (finished.ok or name != names[-1]):
                return rows[name]
            return NoRow(f"the launch ended with status {finished.returncode} at {name}:\n{output}")

        return row


OTHER_TORCHES = ("2.11", "2.12", "2.14", "2.15")
CUDA, XLA = TESTS / "cuda" / "worker.py", TESTS / "xla" / "worker.py"
LAUNCHES = {
    "cuda-1": Launch(CUDA, parity="cuda"),
    "cuda-4": Launch(CUDA, 4, parity="cuda"),
    "cuda-4-compiled": Launch(CUDA, 4, parity="cuda"),
    "cuda-8": Launch(CUDA, 8, parity="cuda"),
    "xla": Launch(XLA, parity="xla"),
    "xla-fp64": Launch(XLA, parity="xla"),
    "trees": Launch(TESTS / "xla" / "tree_worker.py"),
    "twins": Launch(TESTS / "xla" / "twins.py"),
    **{f"torch-{v}": Launch(CUDA, 4, python=str(VERSIONS / f"torch-{v}/bin/python")) for v in OTHER_TORCHES},
    "sync-torch": Launch(TESTS / "cuda" / "sync_worker.py"),
    "sync-jax": Launch(TESTS / "xla" / "sync_worker.py"),
    "torch_xla": Launch(TESTS / "torch_xla" / "worker.py", python=str(TORCH_XLA), parity="torch_xla"),
}


def tier(name: str, in_ci: Collection[str], quick: Collection[str]) -> list[pytest.MarkDecorator]:
    """The marks of a case's tier: `make test` trains the quick ones, CI those of `in_ci` too, `make all` all."""
    if name in quick:
        return []
    return [pytest.mark.long] if name in in_ci else [pytest.mark.slow]


def sampled(names: Iterable[Any], every: int = 4, in_ci: int = 1) -> list[Any]:
    """Names as parameters of tests that differ little: `make test` takes one in `every`, CI one in `in_ci`, and
    `make all` all."""

    def marks(n: int) -> list[pytest.MarkDecorator]:
        if n % every == 0:
            return []
        return [pytest.mark.long, *([pytest.mark.slow] if n % in_ci else [])]

    return [pytest.param(name, marks=marks(n)) for n, name in enumerate(names)]


def case(launch: str, name: str, *marks: pytest.MarkDecorator) -> Any:
    """The name of a layout as a parameter of tests that read its row from a shared launch."""
    return pytest.param(name, id=name, marks=[pytest.mark.launch, pytest.mark.trained(launch, name), *marks])


SCOPES = {
    "tests/cuda/test_parity.py": "cuda",
    "tests/cuda/test_moe.py": "cuda",
    "tests/cuda/test_family.py": "cuda",
    "tests/xla/test_parity.py": "xla",
    "tests/xla/test_moe.py": "xla",
}
"""Files whose tests share launches run in one process, one after the other."""


def scope_of(nodeid: str) -> str:
    """The scope that one process runs: a file, or the files that share launches."""
    file = nodeid.partition("::")[0]
    return SCOPES.get(file, file)


def shared_rows(items: Iterable[pytest.Item]) -> Callable[[str], Callable[[str], Row]]:
    """The rows of each launch, started when the first is asked for, with all cases that `items` name."""
    wanted: dict[str, dict[str, None]] = {}
    scopes: dict[str, str] = {}
    for item in items:
        for mark in item.iter_markers("trained"):
            launch, name = mark.args
            wanted.setdefault(launch, {})[name] = None
            scope = scope_of(item.nodeid)
            assert scopes.setdefault(launch, scope) == scope, f"tests of {launch} are in {scopes[launch]} and {scope}"
    return cache(lambda launch: LAUNCHES[launch].rows(list(wanted[launch])))
