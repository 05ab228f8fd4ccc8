"""The predictions of the audited layouts are those that were committed before they were traced."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from planc.backends.cuda.refusals.plan import refusals
from tests.plans import propagated

from .cases import CASES, plan_of
from .predictions import GOLDEN, text


def test_golden_of_the_predictions(golden: Callable[[Path, str], None]) -> None:
    golden(GOLDEN, text())


def test_every_layout_can_be_lowered_and_world_sizes_are_spread() -> None:
    plans = [plan_of(name) for name in CASES]
    assert [d.message for plan in plans for d in refusals(propagated(plan))] == []
    assert {64, 256, 1024, 16384} <= {plan.mesh.devices for plan in plans}
