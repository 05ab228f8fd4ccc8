"""Layouts with experts traced under an even router: what moves is what was predicted, dropless or not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from planc.backends.cuda.audit import run as auditing
from planc.backends.cuda.audit.memory import MemoryTracker
from planc.backends.cuda.audit.observe import Observer
from planc.ir.audit import AuditOptions, differences
from planc.ir.plan import Optimizer
from tests.audit.cases import BLOCKS, EXPERTS, Case, built
from tests.cuda.moe_cases import moe_case


@pytest.mark.launch
@pytest.mark.parametrize("name", [pytest.param("moe_fsdp", marks=pytest.mark.long), "ep_fsdp", "capacity"])
def test_a_layout_with_experts_moves_what_was_predicted(name: str) -> None:
    """With a replay, which sends rows to their experts again, and Muon, which gathers updates, on one of them."""
    plan = moe_case(name)
    if name == "ep_fsdp":
        plan = replace(moe_case(name, "recompute blocks except attention.core"), optimizer=Optimizer(name="muon"))
    found = auditing.audit(plan, AuditOptions())
    assert differences(found.rows) == [] and found.unparsed == ()
    moved = {row.op for row in found.rows if row.observed.count}
    assert ("all_to_all" in moved) == (name != "moe_fsdp")


WIDE: dict[str, tuple[str, str, int]] = {
    "ep_64": ("mixtral_8x7b(layers = 4)", "fsdp 8 > ep 8", 8192),
    "two_experts_64": ("mixtral_8x7b(layers = 4)", "fsdp 16 > ep 4", 8192),
    "few_tokens_64": ("mixtral_8x7b(layers = 4)", "fsdp 16 > ep 4", 512),
    "qwen3_64": ("qwen3_30b_a3b(layers = 6)", "fsdp 8 > ep 8", 4096),
}


@pytest.mark.launch
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.long if n == "ep_64" else pytest.mark.slow) for n in WIDE]
)
def test_dropless_experts_hold_and_multiply_what_was_predicted(name: str) -> None:
    """In bf16, where one kernel multiplies all experts; experts are an FSDP group of their own."""
    model, mesh, tokens = WIDE[name]
    found = auditing.audit(built(name, Case(model, mesh, (*EXPERTS, BLOCKS), tokens=tokens)), AuditOptions())
    assert all(abs(m.relative) <= 0.04 for m in found.memory)
    assert all(m.predicted_flops == m.observed_flops for m in found.matmuls)


def test_one_kernel_s_products_are_counted_once() -> None:
    """FLOPs of 5 rows of 3 experts, 16 to 24: output and the gradients of rows and weights, two a multiply-add each."""
    rows = torch.ones(5, 16, dtype=torch.bfloat16, requires_grad=True)
    weights = torch.ones(3, 24, 16, dtype=torch.bfloat16, requires_grad=True)
    with MemoryTracker(observer := Observer()):
        ends = torch.tensor([2, 2, 5], dtype=torch.int32)
        out = F.grouped_mm(rows, weights.transpose(1, 2), offs=ends)
        torch.autograd.backward(out, torch.ones_like(out))
    assert observer.flops == 3 * 2 * 5 * 16 * 24
