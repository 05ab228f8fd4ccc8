"""Mixtral: the Llama block with a mixture of experts in place of the MLP.

Sizes are from the published `config.json` files (Jiang et al. 2024, "Mixtral of Experts").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from planc.catalog.parts.attention import attention
from planc.catalog.parts.config import Config, Scaling
from planc.catalog.parts.ends import embedding, head
from planc.catalog.parts.experts import experts
from planc.catalog.parts.part import BLOCK, assemble
from planc.catalog.parts.sizes import dims_of
from planc.ir.model import Model

FAMILY = "mixtral"


@dataclass(frozen=True, kw_only=True)
class Size:
    layers: int
    embed: int
    heads: int
    kv_heads: int
    head_dim: int = 0
    """0: embed / heads."""
    experts: int
    expert_ffn: int
    vocab: int
    top_k: int = 2
    window: int = 0
    rope_theta: float = 1e6
    rope_scaling: Scaling = field(default_factory=dict)
    norm_eps: float = 1e-5
    tied: bool = False


SIZES: dict[str, Size] = {
    "mixtral_micro": Size(layers=4, embed=64, heads=8, kv_heads=4, experts=8, expert_ffn=90, vocab=134),
    "mixtral_8x7b": Size(layers=32, embed=4096, heads=32, kv_heads=8, experts=8, expert_ffn=14336, vocab=32000),
    "mixtral_8x22b": Size(layers=56, embed=6144, heads=48, kv_heads=8, experts=8, expert_ffn=16384, vocab=32000),
}
"""`mixtral_micro` is for parity tests: its vocab and expert_ffn are no multiples of 4."""


def models() -> tuple[str, ...]:
    """The names `model NAME` may use."""
    return tuple(SIZES)


def build(name: str, changes: dict[str, int] | None = None) -> Model:
    """The op graph of a named model; `changes` replaces sizes."""
    return _build(name, SIZES[name], changes)


MODEL_TYPES = ("mixtral",)


def read_config(name: str, fields: Mapping[str, Any]) -> tuple[Model, tuple[str, ...]]:
    """The model of a Hugging Face config, and the fields that were not used. Raises ValueError."""
    config = Config(fields)
    config.must_be(FAMILY, hidden_act="silu")
    embed, heads = config.whole("hidden_size"), config.whole("num_attention_heads")
    theta, scaling = config.rope(1e6)
    size = Size(
        layers=config.layers("num_hidden_layers"),
        embed=embed,
        heads=heads,
        kv_heads=config.whole("num_key_value_heads", default=8),
        head_dim=config.head_dim(embed, heads),
        experts=config.whole("num_local_experts", "num_experts", default=8),
        expert_ffn=config.whole("intermediate_size"),
        vocab=config.whole("vocab_size"),
        top_k=config.whole("num_experts_per_tok", default=2),
        window=config.window(),
        rope_theta=theta,
        rope_scaling=scaling,
        norm_eps=config.number("rms_norm_eps", default=1e-5),
        tied=config.flag("tie_word_embeddings", default=False),
    )
    return _build(name, size), config.unused


def _build(name: str, size: Size, changes: dict[str, int] | None = None) -> Model:
    return assemble(
        name=name,
        family=FAMILY,
        sizes=dims_of(size, changes),
        first=embedding(),
        blocks={BLOCK: attention(window=size.window) + experts()},
        last=head(tied=size.tied),
        rope_theta=size.rope_theta,
        rope_scaling=size.rope_scaling,
        norm_eps=size.norm_eps,
        tied=size.tied,
        top_k=size.top_k,
    )
