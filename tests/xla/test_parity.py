"""Every layout trains as one device does: losses, gradients, parameters (design, section 9).

One process of eight virtual devices holds all cases; each test reads its row.
"""

from __future__ import annotations

import pytest

from tests.launches import Row, case, tier
from tests.xla.cases import FLOAT8, IN_CI, LAYOUTS, NARROW, NARROW_STATE, QUICK

GRADIENT, LOSS = 1e-5, 1e-5
NARROW_GRADIENT, NARROW_LOSS = 0.1, 1e-3
"""bf16 keeps 8 bits: rounding of 0.4 % an operation."""


ALL = [case("xla", n, *tier(n, IN_CI, QUICK)) for n in LAYOUTS]
ROUNDED = [case("xla-fp64", n, *tier(n, IN_CI, QUICK)) for n in (*NARROW_STATE, *FLOAT8)]


@pytest.mark.parametrize("name", [*ALL, *ROUNDED])
def test_trains_as_one_device(name: str, row: Row) -> None:
    assert "failed" not in row, row["failed"]
    assert not row["dead"], "a gradient that is zero everywhere proves nothing"
    assert max(row["gradient"]) <= GRADIENT, row
    assert max(row["loss"], row["evaluated"], row["norm"]) <= LOSS, row
    assert row["parameters"] <= GRADIENT, row
    assert row["uncached"] == 0, "a step after the first compiled something"


@pytest.mark.parametrize("name", [case("xla", n, *tier(n, IN_CI, QUICK)) for n in NARROW])
def test_bf16_stays_near(name: str, row: Row) -> None:
    assert "failed" not in row, row["failed"]
    assert max(row["loss"], row["evaluated"]) <= NARROW_LOSS, row
    assert 1e-6 < max(row["gradient"]) <= NARROW_GRADIENT, "the matmuls must be in bf16, and only roughly right"
