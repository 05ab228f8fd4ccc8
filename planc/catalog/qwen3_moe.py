"""Qwen3 with experts: the Qwen3 block with a mixture of experts instead of the MLP.

Sizes are from the published `config.json` files (Qwen Team 2025, "Qwen3 Technical Report").
"""

from __future__ import annotations

from dataclasses import replace

from planc.catalog.parts.attention import HeadNorm, attention
from planc.catalog.parts.config import Config, decoder_size
from planc.catalog.parts.experts import experts
from planc.catalog.parts.family import ModelFamily
from planc.catalog.parts.mlp import feed_forward
from planc.catalog.parts.part import BLOCK, DENSE, Part
from planc.catalog.parts.sizes import Size
from planc.ir.model import Routing, Section

SIZES: dict[str, Size] = {
    "qwen3_moe_micro": Size(
        layers=4, embed=64, heads=8, kv_heads=4, head_dim=16, experts=8, expert_ffn=90, vocab=134, top_k=2,
        rope_theta=1e6, norm_eps=1e-6,
    ),
    "qwen3_30b_a3b": Size(
        layers=48, embed=2048, heads=32, kv_heads=4, head_dim=128, experts=128, expert_ffn=768, vocab=151936, top_k=8,
        rope_theta=1e6, norm_eps=1e-6,
    ),
    "qwen3_235b_a22b": Size(
        layers=94, embed=4096, heads=64, kv_heads=4, head_dim=128, experts=128, expert_ffn=1536, vocab=151936, top_k=8,
        rope_theta=1e6, norm_eps=1e-6,
    ),
}  # fmt: skip
"""`qwen3_moe_micro` is for parity tests: its vocab and expert_ffn are not multiples of 4."""


def _read(config: Config) -> Size:
    config.must_be(hidden_act="silu", attention_bias=False, use_sliding_window=False)
    shared = decoder_size(config, rope_theta=1e4, kv_heads=4)
    kinds = _kinds(config, shared.layers)
    return replace(
        shared,
        ffn=config.whole("intermediate_size") if DENSE in kinds else 0,
        experts=config.whole("num_experts", "num_local_experts", default=128),
        expert_ffn=config.whole("moe_intermediate_size"),
        top_k=config.whole("num_experts_per_tok", default=8),
        routing=Routing(normed=config.flag("norm_topk_prob", default=False)),
        kinds=kinds,
    )


def _kinds(config: Config, layers: int) -> tuple[Section, ...]:
    kinds = tuple(BLOCK if routed else DENSE for routed in config.routed(layers))
    if BLOCK not in kinds:
        raise ValueError("no layer has experts")
    return kinds


def _attention() -> Part:
    return attention(q_norm=HeadNorm(), k_norm=HeadNorm())


FAMILY = ModelFamily(
    name="qwen3_moe",
    sizes=SIZES,
    blocks=lambda size: {DENSE: _attention() + feed_forward(), BLOCK: _attention() + experts()},
    model_types=("qwen3_moe",),
    read=_read,
)
