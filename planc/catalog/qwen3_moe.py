"""Qwen3 with experts: the Qwen3 block with a mixture of experts in place of the MLP.

Sizes are from the published `config.json` files (Qwen Team 2025, "Qwen3 Technical Report").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from planc.catalog.parts.attention import attention
from planc.catalog.parts.config import Config, decoder_size
from planc.catalog.parts.ends import embedding, head
from planc.catalog.parts.experts import experts
from planc.catalog.parts.mlp import feed_forward
from planc.catalog.parts.part import BLOCK, assemble
from planc.catalog.parts.sizes import Size
from planc.ir.model import Model, Routing, Section

FAMILY = "qwen3_moe"
DENSE = "dense"
"""The kind of block without experts, which a config may ask for."""


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
"""`qwen3_moe_micro` is for parity tests: its vocab and expert_ffn are no multiples of 4."""


def models() -> tuple[str, ...]:
    """The names `model NAME` may use."""
    return tuple(SIZES)


def build(name: str, changes: dict[str, int] | None = None) -> Model:
    """The op graph of a named model; `changes` replaces sizes."""
    return _build(name, SIZES[name], changes)


MODEL_TYPES = ("qwen3_moe",)


def read_config(name: str, fields: Mapping[str, Any]) -> tuple[Model, tuple[str, ...]]:
    """The model `name` with the sizes in `fields`, a Hugging Face config, and the fields not used. Raises
    ValueError."""
    config = Config(fields)
    config.must_be(FAMILY, hidden_act="silu", attention_bias=False, use_sliding_window=False)
    shared = decoder_size(config, rope_theta=1e4, kv_heads=4)
    kinds = _kinds(config, shared.layers)
    size = replace(
        shared,
        ffn=config.whole("intermediate_size") if DENSE in kinds else 0,
        experts=config.whole("num_experts", "num_local_experts", default=128),
        expert_ffn=config.whole("moe_intermediate_size"),
        top_k=config.whole("num_experts_per_tok", default=8),
        routing=Routing(normed=config.flag("norm_topk_prob", default=False)),
        kinds=kinds,
    )
    return _build(name, size), config.unused


def _kinds(config: Config, layers: int) -> tuple[Section, ...]:
    """Without experts are the layers listed, and all but every `decoder_sparse_step`-th."""
    step, listed = config.whole("decoder_sparse_step", default=1), config.numbers("mlp_only_layers")
    kinds = tuple(DENSE if layer in listed or (layer + 1) % step else BLOCK for layer in range(layers))
    if BLOCK not in kinds:
        raise ValueError("no layer has experts")
    return kinds


def _build(name: str, size: Size, changes: dict[str, int] | None = None) -> Model:
    return assemble(
        name=name,
        family=FAMILY,
        size=size,
        changes=changes,
        first=embedding(),
        blocks={DENSE: attention(qk_norm=True) + feed_forward(), BLOCK: attention(qk_norm=True) + experts()},
        last=head(tied=size.tied),
        kinds=size.kinds or (BLOCK,),
    )
