"""Every layout trains as one process does, and moves what the realisation rules say it moves.

One launch per group of layouts: starting four processes costs more than a layout.
"""

from __future__ import annotations

import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from planc.trainer.launch import run

from .cases import PIPELINE, STATE, TENSOR, THREE_D

WORKER = Path(__file__).with_name("worker.py")
BUDGET = 1e-5
PROCESSES = {"state": 4, "tensor": 4, "pipeline": 4, "three_d": 8}
GROUPS = {"state": STATE, "tensor": TENSOR, "pipeline": PIPELINE, "three_d": THREE_D}


@cache
def rows(group: str) -> dict[str, dict[str, Any]]:
    """The comparison of every layout of a group, from one launch."""
    argv = [sys.executable, str(WORKER), *GROUPS[group]]
    finished = run(argv, PROCESSES[group], timeout_s=900)
    failed = finished.outputs[finished.failed_rank or 0]
    found = [json.loads(line[4:]) for line in finished.outputs[0].splitlines() if line.startswith("ROW ")]
    assert finished.ok, failed[-4000:]
    return {row["name"]: row for row in found}


def params() -> list[Any]:
    """(group, layout) of all groups; eight processes are slow on two cores."""
    slow = {"three_d": [pytest.mark.slow]}
    return [
        pytest.param(group, name, marks=[pytest.mark.launch, *slow.get(group, [])], id=name)
        for group, layouts in GROUPS.items()
        for name in layouts
    ]


@pytest.mark.parametrize(("group", "name"), params())
def test_trains_as_one_process(group: str, name: str) -> None:
    row = rows(group)[name]
    assert row["dead"] == [], "a reference gradient is zero: the comparison would prove nothing"
    assert max(row["gradient"]) <= BUDGET, row["where"]
    assert row["loss"] <= BUDGET
    assert row["norm"] <= BUDGET
    assert row["evaluated"] <= BUDGET


@pytest.mark.parametrize(("group", "name"), params())
def test_issues_the_collectives_that_the_rules_predict(group: str, name: str) -> None:
    """Calls and bytes per operation and mesh dimension, on every rank, of one step after the first."""
    assert rows(group)[name]["collectives"] == []
