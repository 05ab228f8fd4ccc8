"""The predictions of the audited layouts are those that were committed before they were traced."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from planc.backends.cuda.refusals.plan import refusals
from tests.plans import propagated

from .cases import CASES, plan_of
from .predictions import GOLDEN, text
from .stage_cases import STAGE_CASES, stage_plan

FIRST_PEAKS = Path(__file__).with_name("first_peaks.json")
"""Bytes at the fullest moment of each stage, as they were predicted before any of these layouts was traced."""


def test_golden_of_the_predictions(golden: Callable[[Path, str], None]) -> None:
    golden(GOLDEN, text())


def test_every_layout_can_be_lowered_and_world_sizes_are_spread() -> None:
    plans = [plan_of(name) for name in CASES]
    assert [d.message for plan in plans for d in refusals(propagated(plan))] == []
    assert {64, 256, 1024, 16384} <= {plan.mesh.devices for plan in plans}


def test_every_layout_with_peaks_by_stage_can_be_lowered_and_was_predicted() -> None:
    plans = {name: stage_plan(name) for name in STAGE_CASES}
    assert len(plans) == 30
    assert [d.message for plan in plans.values() for d in refusals(propagated(plan))] == []
    assert {name: len(peaks) for name, peaks in json.loads(FIRST_PEAKS.read_text()).items()} == {
        name: plan.pipeline for name, plan in plans.items()
    }
