"""Parts sum to wholes on every bundled plan, and costs move the way physics says."""

from dataclasses import replace
from pathlib import Path

import pytest

from planc.costing.explain import explain
from planc.driver import check, examine
from planc.ir.target import AnyTarget, Target
from tests.plans import BODY, BUNDLED, FIELD, HEAD, ROOT, plan_of

MEMORY = ("params", "grads", "optimizer", "activations", "buffers", "comm_buffers", "reserve")
STEP = ("compute_s", "recompute_s", "exposed_comm_s", "bubble_s", "optimizer_s", "offload_s", "overhead_s")


PLANS = [(p, t) for p in BUNDLED for t in (None, "none", "cuda", "xla")] + [(p, None) for p in FIELD]


@pytest.mark.parametrize(("path", "target"), PLANS, ids=lambda v: getattr(v, "stem", v))
def test_parts_sum_to_wholes(path: Path, target: Target | None) -> None:
    report = check(path, target=target)
    if report.step is None:
        assert target == "xla" and {d.code for d in report.diagnostics} == {"E0901"}
        return
    assert report.ok, report.diagnostics
    for stage in report.memory.stages:
        used = stage.per_device_gib
        assert sum(getattr(used, p) for p in MEMORY) == pytest.approx(used.total)
    assert sum(getattr(report.step, p) for p in STEP) == pytest.approx(report.step.time_s)
    assert sum(r.exposed_s for r in report.collectives) == pytest.approx(report.step.exposed_comm_s)
    assert all(r.exposed_s <= r.time_s * 1.0001 for r in report.collectives)
    assert sum(s.layers for s in report.memory.stages) == 80 or report.model.name != "llama3_70b"


@pytest.mark.parametrize("path", [*BUNDLED, *FIELD], ids=lambda p: p.stem)
def test_explained_seconds_sum_to_the_step(path: Path) -> None:
    costed = examine(path).costed
    assert costed is not None
    found = explain(costed)
    assert sum(s.seconds for s in found) == pytest.approx(costed.step.time_s)
    exposed = sum(s.seconds for s in found if s.part == "exposed communication")
    assert exposed == pytest.approx(costed.step.exposed_comm_s)
    assert all(s.name and s.why for s in found)


def test_parameters_of_the_published_models() -> None:
    report = check(ROOT / "plans/llama3_70b_h100.plan")
    assert report.model.params == 70_553_706_496


def test_flops_per_token_follow_the_convention() -> None:
    """6N of the matmul parameters and causal attention: 417.01 + 32.21 GFLOP for Llama 3 70B at 8192."""
    report = check(ROOT / "plans/llama3_70b_h100.plan")
    assert report.model.model_flops_per_token == pytest.approx((417.01 + 32.212) * 1e9, rel=1e-4)


@pytest.mark.parametrize("target", ["none", "cuda"])
def test_state_memory_by_hand(tmp_path: Path, target: AnyTarget) -> None:
    """Llama-8B over 64 ranks (fsdp 8 x tp 8): 4 bytes of master, 4 of gradient, 8 of moments a parameter."""
    report = check(plan_of(tmp_path, HEAD + BODY), target=target)
    share = report.model.params / 64 / 2**30
    used = report.memory.per_device_gib
    norms = 2**-7  # norms are not divided over tp
    assert used.params == pytest.approx(4 * share, rel=norms)
    assert used.grads == pytest.approx(4 * share, rel=norms)
    assert used.optimizer == pytest.approx(8 * share, rel=norms)


def test_activations_of_a_block_by_hand(tmp_path: Path) -> None:
    """fp32, tp 8 with sequence parallel, nothing recomputed. Per layer and token, in elements:
    two norm inputs /8, two gathered inputs whole, q k v mixed /8, gate up mid /8."""
    text = HEAD.replace("llama3_8b", "llama3_8b(layers = 1)") + BODY.replace("blocks", "none")
    report = check(plan_of(tmp_path, text), target="none")
    e, kv, f = 4096, 1024, 14336
    block = 2 * e / 8 + 2 * e + (2 * e + 2 * kv) / 8 + 3 * f / 8
    last = e / 8 + e + 128256 / 8
    ids = 2 * (4 / 4) * 2  # int64 tokens and targets, in 4-byte elements
    expected = 8192 * 4 * (block + last + ids) / 2**30
    assert report.memory.per_device_gib.activations == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("layout", ["ddp", "zero1", "zero2", "fsdp"])
def test_dividing_more_state_never_takes_more_memory(tmp_path: Path, layout: str) -> None:
    order = ["ddp", "zero1", "zero2", "fsdp"]
    head = HEAD.replace("fsdp 8 > tp 8", "dp 64").replace("llama3_8b", "llama3_8b(layers = 8)")
    used = [check(plan_of(tmp_path, head + f"use {name} over dp\nrecompute blocks\n")) for name in order]
    totals = [r.memory.per_device_gib.total for r in used]
    assert totals == sorted(totals, reverse=True)


def test_a_million_devices_cost_the_same_to_check() -> None:
    small = check(ROOT / "plans/llama3_70b_h100.plan", set={"nodes": 8})
    large = check(ROOT / "plans/llama3_70b_h100.plan", set={"nodes": 131072})
    assert (small.devices, large.devices) == (64, 1_048_576)
    assert len(small.collectives) == len(large.collectives)


def test_slower_networks_never_make_a_plan_faster(tmp_path: Path) -> None:
    fast = plan_of(tmp_path, HEAD + BODY)
    levels = tuple(
        replace(level, bandwidth_bytes_per_s=level.bandwidth_bytes_per_s / 10) for level in fast.cluster.levels
    )
    slow = replace(fast, cluster=replace(fast.cluster, levels=levels))
    assert check(slow).step.time_s > check(fast).step.time_s
