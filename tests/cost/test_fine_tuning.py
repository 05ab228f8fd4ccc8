"""Frozen parameters and low-rank updates: FLOPs, memory and transfers that follow."""

from __future__ import annotations

from pathlib import Path

import pytest

from planc.costing import cost_plan
from planc.costing.compute.flops import model_flops_per_token, op_flops
from planc.costing.compute.section import section_time
from planc.driver import check
from planc.ir.collective import Collective
from tests.plans import HEAD_BF16 as HEAD
from tests.plans import plan_of, propagated

TAIL = "use fsdp over fsdp\nuse tp over tp\nuse sp over tp\n"
BODY_PARAMETERS = 8_030_261_248
RANK = 16
UPDATES = 32 * RANK * (2 * (4096 + 4096) + 2 * (4096 + 1024))
"""Parameters of the updates of all projections: A [rank, in] and B [out, rank] of q and out, of k and v."""


def rows(folder: Path, *sentences: str) -> list[Collective]:
    costed = cost_plan(propagated(plan_of(folder, HEAD + "\n".join(sentences) + "\n" + TAIL)))
    return [r.row for r in costed.collectives]


def test_a_step_has_the_flops_of_its_gradients(tmp_path: Path) -> None:
    """A frozen weight has two thirds of a trained one's; what lies before the first update has a third."""
    tokens, attention = 8192, 3 * 32 * 2 * 32 * 256 * (8192 / 2)
    plain, lora = (plan_of(tmp_path, HEAD + sentence + TAIL).model for sentence in ("", f"lora rank {RANK} on heads\n"))
    matrices = BODY_PARAMETERS - 128256 * 4096 - 65 * 4096
    assert model_flops_per_token(plain, tokens) == pytest.approx(6 * matrices + attention)
    opening = 4096 * (
        4096 + 2 * 1024
    )  # inputs of the first layer's q, k and v, which only their weights are frozen for
    updates = 6 * UPDATES - 2 * 3 * RANK * 4096
    assert model_flops_per_token(lora, tokens) == pytest.approx(4 * matrices - 2 * opening + updates + attention)


def test_an_update_is_two_small_products(tmp_path: Path) -> None:
    sharded = propagated(plan_of(tmp_path, HEAD + f"lora rank {RANK} on heads\n" + TAIL))
    q = sharded.ops["block"][1]
    assert q.op.name == "attention.q"
    tokens = 8192
    assert op_flops(sharded, q) == 2 * tokens * (4096 * 4096 / 8 + RANK * 4096 + RANK * 4096 / 8)


def test_seconds_of_gradients_that_are_not_made_are_saved(tmp_path: Path) -> None:
    plain, frozen, head = (
        propagated(plan_of(tmp_path, HEAD + sentence + TAIL))
        for sentence in ("", "freeze model except embedding\n", "freeze model except head\n")
    )
    chip = plain.plan.cluster.chip
    one, other = (section_time(s, "block", chip) for s in (plain, frozen))
    assert one.forward_s == other.forward_s and other.weight_s == 0
    assert other.backward_s == pytest.approx(one.backward_s - one.weight_s)
    assert section_time(head, "block", chip).backward_s == 0


def test_state_is_that_of_what_is_trained(tmp_path: Path) -> None:
    memory = check(plan_of(tmp_path, HEAD + f"target none\nlora rank {RANK} on heads\n" + TAIL)).memory
    assert memory is not None
    whole_factors = 32 * RANK * (3 * 4096 + 4096)  # A of q, k and v, and B of out: whole on each of 8 tensor ranks
    on_device = (UPDATES - whole_factors) / 8 + whole_factors
    held = memory.per_device_gib
    assert held.optimizer * 2**30 == pytest.approx(2 * 4 * on_device / 8)
    assert held.grads * 2**30 == pytest.approx(4 * on_device / 8)


def test_gradients_of_updates_alone_are_reduced(tmp_path: Path) -> None:
    found = rows(tmp_path, f"lora rank {RANK} on heads")
    reduced = {r.tensor for r in found if r.carries == "grad"}
    assert reduced and all("lora" in name or name == "layers.*" for name in reduced)
    over_tp = [r for r in found if r.carries == "grad" and "tp" in r.axes]
    per_layer = {r.tensor.removeprefix("layers.*.attention."): r.op for r in over_tp}
    assert per_layer == dict.fromkeys(("wq.lora_a", "wk.lora_a", "wv.lora_a", "wo.lora_b"), "all_reduce")


def test_a_frozen_embedding_is_gathered_for_the_forward_alone(tmp_path: Path) -> None:
    found = [r for r in rows(tmp_path, "freeze embedding") if r.carries == "param" and r.section == "first"]
    assert {r.phase for r in found} == {"forward"}
    found = [r for r in rows(tmp_path) if r.carries == "param" and r.section == "first"]
    assert {r.phase for r in found} == {"forward", "backward"}


def test_a_gradient_that_nothing_needs_is_not_moved(tmp_path: Path) -> None:
    """The gradient of the first layer's normed input would be reduce-scattered over the tensor ranks."""
    moved = {
        sentence: sum(r.count for r in rows(tmp_path, sentence) if r.phase == "backward" and r.tensor == "attention.in")
        for sentence in ("", "freeze embedding", "freeze model except head")
    }
    microbatches = 8
    assert moved == {"": 32 * microbatches, "freeze embedding": 32 * microbatches, "freeze model except head": 0}
    lora = [r for r in rows(tmp_path, "lora rank 4 on heads") if r.phase == "backward" and r.tensor == "attention.in"]
    assert sum(r.count for r in lora) == 31 * microbatches


def test_transfers_run_beside_the_gradients_that_are_made(tmp_path: Path) -> None:
    """The products of a block that have no backward hide nothing of it; all sums of the plan hold."""
    overlap = "lora rank 16 on attention.k, attention.v\noverlap tp as windowed_einsum\n"
    plans = [plan_of(tmp_path, HEAD + sentences + TAIL) for sentences in (overlap, overlap.partition("\n")[2])]
    lora, plain = (cost_plan(propagated(plan)) for plan in plans)
    assert 0 < lora.step.time_s < plain.step.time_s
