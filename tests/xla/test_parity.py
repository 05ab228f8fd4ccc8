"""Every layout trains as one device does: losses, gradients, parameters (design, section 9).

One process of eight virtual devices holds all cases; each test reads its row.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from planc.trainer.launch import run
from tests.xla.cases import LAYOUTS

WORKER = Path(__file__).with_name("worker.py")
GRADIENT, LOSS = 1e-5, 1e-5

pytestmark = pytest.mark.launch


@pytest.fixture(scope="module")
def rows(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The differences of every selected case, by name."""
    selected = [
        item.callspec.params["name"]
        for item in request.session.items
        if hasattr(item, "callspec") and item.module is request.module
    ]
    done = run([sys.executable, str(WORKER), *dict.fromkeys(selected)], 1, timeout_s=1800)
    assert done.ok, done.outputs[0]
    found = [json.loads(line[4:]) for line in done.outputs[0].splitlines() if line.startswith("ROW ")]
    return {row["name"]: row for row in found}


@pytest.mark.parametrize("name", LAYOUTS)
def test_trains_as_one_device(rows: dict[str, Any], name: str) -> None:
    row = rows[name]
    assert "failed" not in row, row["failed"]
    assert not row["dead"], "a gradient that is zero everywhere proves nothing"
    assert max(row["gradient"]) <= GRADIENT, row
    assert max(row["loss"], row["evaluated"], row["norm"]) <= LOSS, row
    assert row["parameters"] <= GRADIENT, row
    assert row["uncached"] == 0, "a step after the first compiled something"
