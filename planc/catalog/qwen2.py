"""Qwen2 and Qwen2.5, dense: the Llama block with biases in the projections of queries, keys and values.

Sizes are from the published `config.json` files (Qwen Team 2024, "Qwen2.5 Technical Report"). The models up to 3B
tie the head to the embedding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from planc.catalog.parts.attention import attention
from planc.catalog.parts.config import Config, decoder_size
from planc.catalog.parts.ends import embedding, head
from planc.catalog.parts.mlp import feed_forward
from planc.catalog.parts.part import BLOCK, assemble
from planc.catalog.parts.sizes import Size
from planc.catalog.qwen3 import SLIDING, sliding_layers
from planc.ir.model import Model

FAMILY = "qwen2"


def _published(layers: int, embed: int, heads: int, kv_heads: int, ffn: int, vocab: int, norm_eps: float) -> Size:
    return Size(
        layers=layers, embed=embed, heads=heads, kv_heads=kv_heads, ffn=ffn, vocab=vocab, rope_theta=1e6,
        norm_eps=norm_eps, tied=layers * embed <= 36 * 2048,
    )  # fmt: skip


SIZES: dict[str, Size] = {
    "qwen2_micro": Size(layers=4, embed=64, heads=8, kv_heads=4, ffn=182, vocab=134, rope_theta=1e6, norm_eps=1e-6),
    "qwen2_5_0_5b": _published(24, 896, 14, 2, 4864, 151936, 1e-6),
    "qwen2_5_1_5b": _published(28, 1536, 12, 2, 8960, 151936, 1e-6),
    "qwen2_5_3b": _published(36, 2048, 16, 2, 11008, 151936, 1e-6),
    "qwen2_5_7b": _published(28, 3584, 28, 4, 18944, 152064, 1e-6),
    "qwen2_5_14b": _published(48, 5120, 40, 8, 13824, 152064, 1e-5),
    "qwen2_5_32b": _published(64, 5120, 40, 8, 27648, 152064, 1e-5),
    "qwen2_5_72b": _published(80, 8192, 64, 8, 29568, 152064, 1e-5),
}
"""`qwen2_micro` is for tests: its vocab and ffn are no multiples of 4."""


def models() -> tuple[str, ...]:
    """The names `model NAME` may use."""
    return tuple(SIZES)


def build(name: str, changes: dict[str, int] | None = None) -> Model:
    """The op graph of a named model; `changes` replaces sizes."""
    return _build(name, SIZES[name], changes)


MODEL_TYPES = ("qwen2",)


def read_config(name: str, fields: Mapping[str, Any]) -> tuple[Model, tuple[str, ...]]:
    """The model `name` with the sizes in `fields`, a Hugging Face config, and the fields not used. Raises
    ValueError."""
    config = Config(fields)
    config.must_be(FAMILY, hidden_act="silu")
    shared = decoder_size(config, rope_theta=1e4, kv_heads=32)
    window, kinds = sliding_layers(config, shared.layers)
    return _build(
        name, replace(shared, ffn=config.whole("intermediate_size"), window=window, kinds=kinds)
    ), config.unused


def _build(name: str, size: Size, changes: dict[str, int] | None = None) -> Model:
    return assemble(
        name=name,
        family=FAMILY,
        size=size,
        changes=changes,
        first=embedding(),
        blocks={
            BLOCK: attention(biased_inputs=True) + feed_forward(),
            SLIDING: attention(biased_inputs=True, window=size.window) + feed_forward(),
        },
        last=head(tied=size.tied),
        kinds=size.kinds or (BLOCK,),
    )
