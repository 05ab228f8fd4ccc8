"""Mixtral: the Llama block with a mixture of experts in place of the MLP.

Sizes are from the published `config.json` files (Jiang et al. 2024, "Mixtral of Experts").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from planc.catalog.parts.attention import attention
from planc.catalog.parts.config import Config, decoder_size
from planc.catalog.parts.ends import embedding, head
from planc.catalog.parts.experts import experts
from planc.catalog.parts.part import BLOCK, assemble
from planc.catalog.parts.sizes import Size
from planc.ir.model import Model

FAMILY = "mixtral"


def _published(layers: int, embed: int, heads: int, expert_ffn: int) -> Size:
    return Size(
        layers=layers, embed=embed, heads=heads, kv_heads=8, experts=8, expert_ffn=expert_ffn, vocab=32000,
        top_k=2, rope_theta=1e6,
    )  # fmt: skip


SIZES: dict[str, Size] = {
    "mixtral_micro": Size(
        layers=4, embed=64, heads=8, kv_heads=4, experts=8, expert_ffn=90, vocab=134, top_k=2, rope_theta=1e6
    ),
    "mixtral_8x7b": _published(32, 4096, 32, 14336),
    "mixtral_8x22b": _published(56, 6144, 48, 16384),
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
    """The model `name` with the sizes in `fields`, a Hugging Face config, and the fields not used. Raises
    ValueError."""
    config = Config(fields)
    config.must_be(FAMILY, hidden_act="silu")
    size = replace(
        decoder_size(config, rope_theta=1e6, kv_heads=8, norm_eps=1e-5),
        experts=config.whole("num_local_experts", "num_experts", default=8),
        expert_ffn=config.whole("intermediate_size"),
        top_k=config.whole("num_experts_per_tok", default=2),
        window=config.window(),
    )
    return _build(name, size), config.unused


def _build(name: str, size: Size, changes: dict[str, int] | None = None) -> Model:
    return assemble(
        name=name,
        family=FAMILY,
        size=size,
        changes=changes,
        first=embedding(),
        blocks={BLOCK: attention(window=size.window) + experts()},
        last=head(tied=size.tied),
    )
