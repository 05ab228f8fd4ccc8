"""gpt-oss: experts in every layer, attention with sinks that slides in every other layer, biases.

Sizes are from the published `config.json` files (OpenAI 2025, "gpt-oss-120b & gpt-oss-20b Model Card").
The scaling of rotary positions is left out; a config brings it.
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
from planc.catalog.parts.sizes import Size, layers_of
from planc.ir.model import Model

FAMILY = "gpt_oss"
SLIDING = "sliding"
"""The kind of block whose attention has a window."""
KINDS = (SLIDING, BLOCK)
"""The kinds of a layer and the next."""


def _published(layers: int, experts: int) -> Size:
    return Size(
        layers=layers, embed=2880, heads=64, kv_heads=8, head_dim=64, experts=experts, expert_ffn=2880, vocab=201088,
        top_k=4, window=128, rope_theta=150000.0,
    )  # fmt: skip


SIZES: dict[str, Size] = {
    "gpt_oss_micro": Size(
        layers=4, embed=64, heads=8, kv_heads=4, head_dim=16, experts=8, expert_ffn=90, vocab=134,
        top_k=2, window=16, rope_theta=150000.0,
    ),
    "gpt_oss_20b": _published(layers=24, experts=32),
    "gpt_oss_120b": _published(layers=36, experts=128),
}  # fmt: skip
"""`gpt_oss_micro` is for parity tests: its vocab and expert_ffn are no multiples of 4."""


def models() -> tuple[str, ...]:
    """The names `model NAME` may use."""
    return tuple(SIZES)


def build(name: str, changes: dict[str, int] | None = None) -> Model:
    """The op graph of a named model; `changes` replaces sizes."""
    return _build(name, SIZES[name], changes)


MODEL_TYPES = ("gpt_oss",)


def read_config(name: str, fields: Mapping[str, Any]) -> tuple[Model, tuple[str, ...]]:
    """The model `name` with the sizes in `fields`, a Hugging Face config, and the fields not used. Raises
    ValueError."""
    config = Config(fields)
    config.must_be(FAMILY, hidden_act="silu", attention_bias=True)
    shared = decoder_size(config, rope_theta=150000.0, kv_heads=8, head_dim=64, norm_eps=1e-5)
    size = replace(
        shared,
        experts=config.whole("num_local_experts", "num_experts", default=128),
        expert_ffn=config.whole("intermediate_size"),
        top_k=config.whole("num_experts_per_tok", "experts_per_token", default=4),
        window=config.window(default=128),
        kinds=tuple(KINDS[not slides] for slides in config.windows(shared.layers) or ()),
    )
    return _build(name, size), config.unused


def _build(name: str, size: Size, changes: dict[str, int] | None = None) -> Model:
    every_other = tuple(KINDS[layer % 2] for layer in range(layers_of(size, changes)))
    ffn = experts(biased=True)
    return assemble(
        name=name,
        family=FAMILY,
        size=size,
        changes=changes,
        first=embedding(),
        blocks={
            SLIDING: attention(window=size.window, biased=True, sinks=True) + ffn,
            BLOCK: attention(biased=True, sinks=True) + ffn,
        },
        last=head(tied=size.tied),
        kinds=size.kinds or every_other,
    )
