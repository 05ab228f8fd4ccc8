"""Tokens on their way to experts and back: collectives and bytes by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from planc.ir.collective import Collective
from planc.sharding.collectives import semantic_collectives
from tests.plans import plan_of, sharded_of

VIEW = """plan example
model     mixtral_8x7b(layers = 4)
batch     8 x 4096 tokens microbatch 1
cluster   8 x h100_node
mesh      fsdp 8 > tp 8
view      efsdp 4 > ep 8 > etp 2 of fsdp, tp for experts
use       fsdp over fsdp
use       tp   over tp
use       sp   over tp
use       ep   over ep
use       etp  over etp
store     params, grads, optimizer over efsdp for experts
compute   bf16 reduce fp32
recompute none
"""
LAYERS, EMBED, TOP_K, FFN = 4, 4096, 2, 14336
TOKENS = 4096 // 8
"""Tokens of one rank: one sequence of a data-parallel rank, an eighth of it over tp."""


def rows(tmp_path: Path, text: str, *axes: str) -> list[Collective]:
    return [r for r in semantic_collectives(sharded_of(tmp_path, text)) if r.axes == axes]


def test_tokens_go_to_experts_and_back(tmp_path: Path) -> None:
    """One exchange there and one back in each layer, and their duals: top_k copies of every token."""
    exchanges = rows(tmp_path, VIEW, "ep")
    assert {(r.op, r.phase) for r in exchanges} == {("all_to_all", "forward"), ("all_to_all", "backward")}
    assert sum(r.count for r in exchanges) == 4 * LAYERS
    assert {r.buffer_bytes for r in exchanges} == {TOKENS * TOP_K * EMBED * 2}


def test_ranks_that_share_an_expert_gather_its_tokens(tmp_path: Path) -> None:
    """etp divides an expert's ffn: inputs are gathered, outputs summed and scattered, and the duals."""
    shared = [r for r in rows(tmp_path, VIEW, "etp") if r.carries == "activation"]
    counts = {(r.op, r.phase): r.count for r in shared}
    assert counts == {
        (op, phase): LAYERS for op in ("all_gather", "reduce_scatter") for phase in ("forward", "backward")
    }
    assert {r.buffer_bytes for r in shared} == {2 * TOKENS * TOP_K * EMBED * 2}


def test_experts_rest_over_their_own_axis(tmp_path: Path) -> None:
    """An expert's weights are gathered and its gradients scattered over efsdp, the rest over fsdp."""
    experts = [r for r in rows(tmp_path, VIEW, "efsdp") if r.carries in ("param", "grad")]
    assert {r.tensor.split(".")[-2] for r in experts} == {"w1", "w2", "w3"}
    weight = 8 // 8 * FFN // 2 * EMBED
    assert {r.buffer_bytes for r in experts if r.op == "reduce_scatter"} == {weight * 4}
    others = [r for r in rows(tmp_path, VIEW, "fsdp") if r.carries in ("param", "grad")]
    assert others and not any("experts" in r.tensor for r in others)


def test_capacity_makes_room_whether_used_or_not(tmp_path: Path) -> None:
    text = VIEW + "route experts as capacity(factor = 1.25)\n"
    full, roomy = rows(tmp_path, VIEW, "ep"), rows(tmp_path, text, "ep")
    assert roomy[0].buffer_bytes == pytest.approx(1.25 * full[0].buffer_bytes)


def test_experts_over_a_mesh_axis_need_no_view(tmp_path: Path) -> None:
    text = """plan example
model     mixtral_8x7b(layers = 4)
batch     8 x 4096 tokens microbatch 1
cluster   1 x h100_node
mesh      fsdp 2 > ep 4
shard     batch   over fsdp, ep
use       ep      over ep
store     params, grads, optimizer over fsdp, ep
compute   fp32
"""
    exchanges = [r for r in rows(tmp_path, text, "ep") if r.op == "all_to_all"]
    assert {r.buffer_bytes for r in exchanges} == {4096 * TOP_K * EMBED * 4}
    grads = [r for r in rows(tmp_path, text, "fsdp") if r.carries == "grad" and "experts" in r.tensor]
    assert {r.op for r in grads} == {"reduce_scatter"}, "an expert's gradient is a sum over the other axis alone"


def test_a_token_uses_top_k_of_the_experts(tmp_path: Path) -> None:
    """Mixtral 8x7B: 46.7 B parameters, 12.9 B of them for a token (arXiv 2401.04088: 47B and 13B)."""
    model = plan_of(tmp_path, VIEW.replace("(layers = 4)", "")).model
    assert model.parameters == pytest.approx(46.70e9, rel=1e-3)
    assert model.active_parameters == pytest.approx(12.88e9, rel=1e-3)
