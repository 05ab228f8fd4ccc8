"""Every layout trains as one process does, and moves what the realisation rules say it moves.

One launch per group of layouts: starting four processes costs more than a layout.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from planc.trainer.run.launch import run
from tests.rows import parity_rows

from .cases import BLOCKS, COMPILED, CONTEXT, FLOAT8, MODELS, ONE, PIPELINE, SELDOM, STATE, TENSOR, THREE_D

WORKER = Path(__file__).with_name("worker.py")
BUDGET = 1e-5
NARROW = {"gradient": 2**-4, "loss": 1e-3, "norm": 1e-2, "evaluated": 1e-3}
"""Where bf16 sums are taken in another order than one process takes them: a few roundings of 2^-8 each."""
PROCESSES = {
    "one": 1,
    "state": 4,
    "tensor": 4,
    "pipeline": 4,
    "context": 4,
    "blocks": 4,
    "float8": 4,
    "compiled": 4,
    "models": 4,
    "three_d": 8,
}
GROUPS = {
    "one": ONE,
    "state": STATE,
    "tensor": TENSOR,
    "pipeline": PIPELINE,
    "context": CONTEXT,
    "blocks": BLOCKS,
    "float8": FLOAT8,
    "compiled": COMPILED,
    "models": MODELS,
    "three_d": THREE_D,
}


Rows = dict[str, dict[str, Any]]


@pytest.fixture(scope="session")
def rows(request: pytest.FixtureRequest) -> Callable[[str], Rows]:
    """The comparison of every layout of a group that this run of pytest asks for, from one launch."""
    wanted: dict[str, dict[str, None]] = {}
    for item in request.session.items:
        values = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        if "group" in values:
            wanted.setdefault(values["group"], {})[values["name"]] = None
    return cache(lambda group: launched(PROCESSES[group], list(wanted[group])))


def launched(processes: int, names: list[str]) -> Rows:
    """Train these layouts one after the other in one launch."""
    finished = run([sys.executable, str(WORKER), *names], processes, timeout_s=900)
    assert finished.ok, finished.outputs[finished.failed_rank or 0][-4000:]
    return parity_rows("cuda", finished.outputs[0])


def params() -> list[Any]:
    """(group, layout) of all groups; eight processes and compiling are slow on two cores."""
    slow = {*THREE_D, *COMPILED, *SELDOM}
    return [
        pytest.param(group, name, marks=[pytest.mark.launch, *[pytest.mark.slow] * (name in slow)], id=name)
        for group, layouts in GROUPS.items()
        for name in layouts
    ]


@pytest.mark.parametrize(("group", "name"), params())
def test_trains_as_one_process(group: str, name: str, rows: Callable[[str], Rows]) -> None:
    row, budget = rows(group)[name], NARROW if name == "ring_bf16" else dict.fromkeys(NARROW, BUDGET)
    assert row["dead"] == [], "a reference gradient is zero: the comparison would prove nothing"
    assert max(row["gradient"]) <= budget["gradient"], row["where"]
    assert row["loss"] <= budget["loss"]
    assert row["norm"] <= budget["norm"]
    assert row["evaluated"] <= budget["evaluated"]


@pytest.mark.parametrize(("group", "name"), [p for p in params() if p.values[0] != "compiled"])
def test_issues_the_collectives_that_the_rules_predict(group: str, name: str, rows: Callable[[str], Rows]) -> None:
    """Calls and bytes per operation and mesh dimension, on every rank, of one step after the first."""
    assert rows(group)[name]["collectives"] == []
