"""Every layout trains as one device does: losses, gradients, parameters (design, section 9).

One process of eight virtual devices holds all cases; each test reads its row.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from planc.trainer.run.launch import run
from tests.rows import parity_rows
from tests.xla.cases import LAYOUTS, NARROW, SELDOM

WORKER = Path(__file__).with_name("worker.py")
GRADIENT, LOSS = 1e-5, 1e-5
NARROW_GRADIENT, NARROW_LOSS = 0.1, 1e-3
"""bf16 keeps 8 bits: rounding of 0.4 % an operation."""

pytestmark = pytest.mark.launch


@pytest.fixture(scope="module")
def rows(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The differences of every selected case, by name."""
    selected = [
        item.callspec.params["name"]
        for item in request.session.items
        if hasattr(item, "callspec") and item.module is request.module
    ]
    done = run([sys.executable, str(WORKER), *dict.fromkeys(selected)], 1, timeout_s=3600)
    assert done.ok, done.outputs[0]
    return parity_rows("xla", done.outputs[0])


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in SELDOM)) for n in LAYOUTS])
def test_trains_as_one_device(rows: dict[str, Any], name: str) -> None:
    row = rows[name]
    assert "failed" not in row, row["failed"]
    assert not row["dead"], "a gradient that is zero everywhere proves nothing"
    assert max(row["gradient"]) <= GRADIENT, row
    assert max(row["loss"], row["evaluated"], row["norm"]) <= LOSS, row
    assert row["parameters"] <= GRADIENT, row
    assert row["uncached"] == 0, "a step after the first compiled something"


@pytest.mark.parametrize("name", NARROW)
def test_bf16_stays_near(rows: dict[str, Any], name: str) -> None:
    row = rows[name]
    assert "failed" not in row, row["failed"]
    assert max(row["loss"], row["evaluated"]) <= NARROW_LOSS, row
    assert 1e-6 < max(row["gradient"]) <= NARROW_GRADIENT, "the matmuls must be in bf16, and only roughly right"
