"""Weights under the names of vLLM and SGLang: their own parameters, and what their loaders take, sliced by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from planc.ir.plan import Plan
from tests.cuda.cases import case, plan_of
from tests.cuda.moe_cases import moe_case
from tests.cuda.sync_worker import Both, Tensors, parts, tensors_of
from tests.sync_cases import BATCH, Served, served_tensors

TP, EP = "use tp over tp", "use ep over ep"
LAYOUTS: dict[str, tuple[str, str, tuple[str, ...], int, int, int]] = {
    "llama_tp2": ("llama_micro", "tp 2", (TP,), 2, 1, 1),
    "qwen2_tp2": ("qwen2_micro", "tp 2", (TP,), 2, 1, 1),
    "qwen3_dp_tp": ("qwen3_micro", "dp 2 > tp 2", ("use ddp over dp", TP), 2, 1, 1),
    "llama_pp2": ("llama_micro", "pp 2", ("split layers over pp as gpipe",), 1, 1, 2),
    "mixtral_tp2": ("mixtral_micro", "tp 2", ("shard heads, vocab over tp", "use etp over tp"), 2, 1, 1),
    "qwen3_moe_ep4": ("qwen3_moe_micro", "ep 4", ("use ddp over ep", EP), 1, 4, 1),
    "qwen3_moe_ep_on_tp": ("qwen3_moe_micro", "tp 2", (TP, "use ep over tp"), 2, 2, 1),
}
"""Model, mesh, sentences; and ranks of the engine that divide tensors, experts and layers."""


def both_of(name: str, dtype: str = "bf16", block: int = 0) -> Both:
    model, mesh, sentences, *_ = LAYOUTS[name]
    trainer = trainer_of(model)
    return Both(
        name, Served(name, trainer, plan_of("served", mesh, *sentences, model=model, batch=BATCH), dtype, block, False)
    )


def trainer_of(model: str) -> Plan:
    if model == "llama_micro":
        return case("fsdp")
    if model == "mixtral_micro":
        return moe_case("moe_fsdp")
    return plan_of("trainer", "fsdp 4", "use fsdp over fsdp", model=model, batch=BATCH)


def cut(whole: Any, parts: int, at: int, dim: int = 0) -> Any:
    """One of equal parts."""
    return np.split(whole, parts, dim)[at]


def by_hand(name: str, whole: Any, rank: int) -> dict[str, Any]:
    """The parameters of an engine's rank, from whole tensors."""
    model, _, _, tp, ep, pp = LAYOUTS[name]
    t, e, stage = rank % tp, rank % ep, rank % pp
    layers = range(4)[stage * 4 // pp : (stage + 1) * 4 // pp]
    found = {}
    if stage == 0:
        found["model.embed_tokens.weight"] = cut(whole["tok_embeddings.weight"], tp, t)
    if stage == pp - 1:
        found["model.norm.weight"] = whole["norm.weight"]
        found["lm_head.weight"] = cut(whole["output.weight"], tp, t)
    for n in layers:
        ours, theirs = f"layers.{n}.", f"model.layers.{n}."
        found[f"{theirs}input_layernorm.weight"] = whole[f"{ours}attention_norm.weight"]
        found[f"{theirs}post_attention_layernorm.weight"] = whole[f"{ours}ffn_norm.weight"]
        for kind in ("weight", *(["bias"] if model == "qwen2_micro" else [])):
            qkv = [cut(whole[f"{ours}attention.{letter}.{kind}"], tp, t) for letter in ("wq", "wk", "wv")]
            found[f"{theirs}self_attn.qkv_proj.{kind}"] = np.concatenate(qkv)
        found[f"{theirs}self_attn.o_proj.weight"] = cut(whole[f"{ours}attention.wo.weight"], tp, t, 1)
        for norm in ("q_norm", "k_norm") if "qwen3" in model else ():
            found[f"{theirs}self_attn.{norm}.weight"] = whole[f"{ours}attention.{norm}.weight"]
        if f"{ours}moe.router.weight" not in whole:
            gate, up = (cut(whole[f"{ours}feed_forward.{w}.weight"], tp, t) for w in ("w1", "w3"))
            found[f"{theirs}mlp.gate_up_proj.weight"] = np.concatenate([gate, up])
            found[f"{theirs}mlp.down_proj.weight"] = cut(whole[f"{ours}feed_forward.w2.weight"], tp, t, 1)
            continue
        module = f"{theirs}{'block_sparse_moe' if model == 'mixtral_micro' else 'mlp'}"
        found[f"{module}.gate.weight"] = whole[f"{ours}moe.router.weight"]
        w1, w3, w2 = (cut(whole[f"{ours}moe.experts.{w}.weight"], ep, e) for w in ("w1", "w3", "w2"))
        if ep == 1:
            w1, w3, w2 = cut(w1, tp, t, 1), cut(w3, tp, t, 1), cut(w2, tp, t, 2)
        found[f"{module}.experts.w13_weight"] = np.concatenate([w1, w3], 1)
        found[f"{module}.experts.w2_weight"] = w2
    return found


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and torch.equal(
        one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8)
    )


def blank(hand: Tensors) -> Tensors:
    return {name: torch.full_like(t, 0.5) for name, t in hand.items()}


@pytest.mark.parametrize("name", LAYOUTS)
def test_what_is_synced_into_views_is_an_engines_own(name: str) -> None:
    both = both_of(name)
    whole = served_tensors(both.serve)
    for rank in range(both.sides[1].devices):
        hand = tensors_of(by_hand(name, whole, rank))
        engine = blank(hand)
        views = both.module.engine_views(engine, rank)
        weights = parts(both, 1, both.sides[1].first + rank, tensors_of(whole))
        assert views.keys() == weights.keys()
        for key, tensor in weights.items():
            views[key].copy_(tensor)
        assert [key for key, tensor in hand.items() if not same(engine[key], tensor)] == []


def test_scales_of_blocks_are_fused_too() -> None:
    both = both_of("llama_tp2", "float8", 1)
    (whole, rank) = served_tensors(both.serve), 1
    key = "model.layers.2.self_attn.qkv_proj.weight_scale_inv"
    weights = parts(both, 1, both.sides[1].first + rank, tensors_of(whole))
    hand = tensors_of(by_hand("llama_tp2", whole, rank))
    scales = {n.removesuffix("_scale_inv"): a for n, a in whole.items() if n.endswith("_scale_inv")}
    fused = tensors_of(by_hand("llama_tp2", {**whole, **scales}, rank))
    narrow = {f"{n}_scale_inv": fused[n] for n in hand if hand[n].dtype == torch.float8_e4m3fn}
    engine = {n: torch.zeros_like(t) for n, t in {**hand, **narrow}.items()}
    views = both.module.engine_views(engine, rank)
    for name, tensor in weights.items():
        views[name].copy_(tensor)
    assert key in engine and [n for n, t in {**hand, **narrow}.items() if not same(engine[n], t)] == []


@pytest.mark.parametrize("name", ["llama_pp2", "qwen3_moe_ep4"])
def test_a_loader_gets_whole_tensors_by_their_names_in_checkpoints(name: str) -> None:
    both = both_of(name)
    whole = tensors_of(served_tensors(both.serve))
    found: Tensors = {}
    for rank in range(both.sides[1].devices):
        found |= dict(both.module.checkpoint_names(parts(both, 1, both.sides[1].first + rank, whole), rank))
    expected = {"model.layers.3.self_attn.k_proj.weight": whole["layers.3.attention.wk.weight"]}
    if name == "llama_pp2":
        expected["model.layers.0.mlp.up_proj.weight"] = whole["layers.0.feed_forward.w3.weight"]
        assert len(found) == len(whole)
    else:
        expected["model.layers.1.mlp.experts.5.down_proj.weight"] = whole["layers.1.moe.experts.w2.weight"][5]
        expected["model.layers.1.mlp.gate.weight"] = whole["layers.1.moe.router.weight"]
        assert len(found) == len(whole) + 4 * 3 * 7, "eight experts' matrices for one tensor"
    assert [key for key, tensor in expected.items() if not same(found[key], tensor)] == []


def test_another_layout_of_the_engine_is_refused() -> None:
    both = both_of("llama_tp2")
    whole = served_tensors(both.serve)
    engine = tensors_of(by_hand("llama_tp2", whole, 0))
    padded = {**engine, "lm_head.weight": torch.zeros(96, 64)}  # vLLM pads 134 rows to 192, and divides these
    with pytest.raises(ValueError, match="lm_head"):
        both.module.engine_views(padded, 0)
    del engine["model.norm.weight"]
    with pytest.raises(ValueError, match=r"no parameter model\.norm\.weight"):
        both.module.engine_views(engine, 0)
    weights = parts(both, 1, both.sides[1].first, tensors_of(whole))
    with pytest.raises(ValueError, match="is divided"):
        list(both.module.checkpoint_names(weights, 0))


def test_an_engines_padding_of_a_whole_vocabulary_stays() -> None:
    both = both_of("llama_pp2")
    engine = tensors_of(by_hand("llama_pp2", served_tensors(both.serve), 0))
    engine["model.embed_tokens.weight"] = torch.zeros(192, 64)
    assert both.module.engine_views(engine, 0)["tok_embeddings.weight"].shape == (134, 64)
