"""Peaks of pipeline stages as they were traced: what is predicted of them stays near."""

from __future__ import annotations

import pytest

from planc.backends.cuda.audit.run import predicted_bytes
from planc.driver import load
from tests.audit.cases import plan_of
from tests.audit.stage_cases import STAGE_CASES, stage_plan
from tests.plans import ROOT, cpu_plan, propagated

MIB = 2.0**20
NEAR = 0.025
SEEN: dict[tuple[str, int], float] = {
    ("one_f_one_b_fp32_64", 0): 13109.2,
    ("one_f_one_b_fp32_64", 1): 17393.2,
    ("one_f_one_b_experts_128", 1): 12293.4,
    ("one_f_one_b_experts_tp_1024", 1): 5182.3,
    ("gpipe_experts_384", 0): 8236.4,
    ("gpipe_experts_384", 2): 11365.5,
    ("gpipe_experts_tp_96", 0): 11850.3,
    ("zbv_zero2_ring_tp_96", 0): 10762.0,
    ("zbv_zero2_ring_tp_96", 1): 5331.4,
    ("zbv_zero2_ring_tp_96", 2): 5383.1,
    ("zero_bubble_zero2_tp_64", 0): 12168.0,
    ("zero_bubble_zero2_tp_64", 1): 16703.9,
    ("zbv_tp_128", 0): 9540.8,
    ("zbv_tp_128", 1): 5335.0,
    ("zbv_tp_128", 2): 5642.6,
    ("zbv_tp_128", 3): 6487.2,
    ("dualpipev_experts_32", 0): 17570.5,
    ("dualpipev_experts_32", 1): 6321.3,
    ("one_f_one_b_every_other_64", 0): 12560.1,
    ("one_f_one_b_gather_64", 0): 12745.3,
    ("one_f_one_b_ring_64", 0): 9515.0,
    ("interleaved_latent_experts_16", 0): 7028.8,
    ("cp_ring_64", 0): 20070.4,
}
"""MiB of tensors at the peak of a layout's stage, as `make audit-stages` or `make audit` saw them."""


@pytest.mark.parametrize(("name", "stage"), SEEN)
def test_a_peak_that_was_traced_is_predicted(name: str, stage: int) -> None:
    plan = stage_plan(name) if name in STAGE_CASES else plan_of(name)
    assert predicted_bytes(propagated(plan))[stage] / MIB == pytest.approx(SEEN[name, stage], NEAR)


@pytest.mark.parametrize(("stage", "gib"), [(0, 53.866), (1, 59.448)])
def test_stages_of_one_layer_hold_what_was_traced(stage: int, gib: float) -> None:
    """Eight of them a rank and as few microbatches as ranks: every backward comes after most forwards."""
    plan = load(ROOT / "plans" / "field" / "llama3_405b_8k.plan", target="cuda")
    assert predicted_bytes(propagated(plan))[stage] / MIB / 1024 == pytest.approx(gib, 0.002)


CHUNKS = "split layers over pp as interleaved_1f1b(chunks = 8) stages [embed, 30 x 1 layers, head]"


@pytest.mark.parametrize(
    ("sequences", "recompute", "stage", "gib"),
    [
        (8, "recompute blocks", 0, 8.126),  # at the update: what the schedule gathered is let go
        (8, "recompute attention.norm, ffn.norm", 3, 12.292),
        (32, "recompute blocks", 1, 14.771),
    ],
)
def test_gradients_are_there_once_backwards_begin(sequences: int, recompute: str, stage: int, gib: float) -> None:
    plan = cpu_plan(
        "chunks",
        "pp 4 > fsdp 2 > tp 2",
        *("use tp over tp", "use sp over tp", "shard batch over fsdp", "store params, optimizer over fsdp"),
        *("gather params per step", CHUNKS, "compute bf16 reduce fp32", recompute),
        batch=f"{sequences} x 4096 tokens microbatch 1",
        model="llama3_8b(layers = 30, vocab = 4096)",
        cluster="2 x h100_node",
    )
    assert predicted_bytes(propagated(plan))[stage] / MIB / 1024 == pytest.approx(gib, 0.003)
