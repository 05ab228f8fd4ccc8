"""Peaks of pipeline stages as they were traced: what is predicted of them stays near."""

from __future__ import annotations

import pytest

from planc.backends.cuda.audit.run import predicted_bytes
from tests.audit.cases import plan_of
from tests.audit.stage_cases import STAGE_CASES, stage_plan
from tests.plans import propagated

MIB = 2.0**20
NEAR = 0.025
SEEN: dict[tuple[str, int], float] = {
    ("one_f_one_b_fp32_64", 0): 13109.2,
    ("one_f_one_b_fp32_64", 1): 17393.2,
    ("one_f_one_b_experts_128", 1): 12293.4,
    ("one_f_one_b_experts_tp_1024", 1): 8149.8,
    ("gpipe_experts_384", 0): 8236.4,
    ("gpipe_experts_384", 2): 11365.5,
    ("gpipe_experts_tp_96", 0): 11850.3,
    ("zbv_zero2_ring_tp_96", 0): 14268.9,
    ("zbv_zero2_ring_tp_96", 1): 5331.4,
    ("zbv_zero2_ring_tp_96", 2): 5383.1,
    ("zero_bubble_zero2_tp_64", 0): 13169.9,
    ("cp_ring_64", 0): 20070.4,
}
"""MiB of tensors at the peak of a layout's stage, as `make audit-stages` or `make audit` saw them."""


@pytest.mark.parametrize(("name", "stage"), SEEN)
def test_a_peak_that_was_traced_is_predicted(name: str, stage: int) -> None:
    plan = stage_plan(name) if name in STAGE_CASES else plan_of(name)
    assert predicted_bytes(propagated(plan))[stage] / MIB == pytest.approx(SEEN[name, stage], NEAR)
