"""Every layout trains as one process does, and moves what the realisation rules say it moves."""

from __future__ import annotations

from typing import Any

import pytest

from tests.launches import Row, case, tier

from .cases import (
    BLOCKS,
    COMPILED,
    CONTEXT,
    FINE_TUNED,
    FLOAT8,
    IN_CI,
    KEYS,
    LOSS,
    MODELS,
    NARROW_STATE,
    ONE,
    PIPELINE,
    QUICK,
    STATE,
    TENSOR,
    THREE_D,
    TIED,
    TIED_3D,
    UNEVEN,
)

BUDGET = 1e-5
NARROW = {"gradient": 2**-4, "loss": 1e-3, "norm": 1e-2, "evaluated": 1e-3, "parameters": 4e-3}
"""Where bf16 sums are taken in another order than one process takes them: a few roundings of 2^-8 each."""
LAUNCH = {"one": "cuda-1", "compiled": "cuda-4-compiled", "three_d": "cuda-8", "tied_3d": "cuda-8"}
"""Four processes for all others."""
GROUPS = {
    "one": ONE,
    "state": STATE,
    "tensor": TENSOR,
    "fine_tuned": FINE_TUNED,
    "pipeline": PIPELINE,
    "context": CONTEXT,
    "blocks": BLOCKS,
    "float8": FLOAT8,
    "narrow_state": NARROW_STATE,
    "compiled": COMPILED,
    "models": MODELS,
    "keys": KEYS,
    "three_d": THREE_D,
    "tied": TIED,
    "tied_3d": TIED_3D,
    "uneven": UNEVEN,
    "loss": LOSS,
}


def params(*left_out: str) -> list[Any]:
    """Layouts of all groups but those left out; eight processes and compiling are slow on two cores."""
    return [
        case(LAUNCH.get(group, "cuda-4"), name, *tier(name, IN_CI, QUICK))
        for group, layouts in GROUPS.items()
        if group not in left_out
        for name in layouts
    ]


@pytest.mark.parametrize("name", params())
def test_trains_as_one_process(name: str, row: Row) -> None:
    budget = NARROW if name in ("ring_bf16", "chunks_bf16") else dict.fromkeys(NARROW, BUDGET)
    assert row["dead"] == [], "a reference gradient is zero: the comparison would prove nothing"
    assert max(row["gradient"]) <= budget["gradient"], row["where"]
    assert row["loss"] <= budget["loss"]
    assert row["norm"] <= budget["norm"]
    assert row["evaluated"] <= budget["evaluated"]
    assert row["parameters"] <= budget["parameters"]


@pytest.mark.parametrize("name", params("compiled"))
def test_issues_the_collectives_that_the_rules_predict(name: str, row: Row) -> None:
    """Calls and bytes per operation and mesh dimension, on every rank, of one step after the first."""
    assert row["collectives"] == []
