"""Mistral: the Llama block whose attention sees a sliding window.

Sizes are from the published `config.json` (Jiang et al. 2023, "Mistral 7B"). Later releases of the 7B
have no window; a config says which.
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
from planc.ir.model import Model

FAMILY = "mistral"


SIZES: dict[str, Size] = {
    "mistral_micro": Size(layers=4, embed=64, heads=8, kv_heads=4, ffn=182, vocab=134, window=16),
    "mistral_7b": Size(layers=32, embed=4096, heads=32, kv_heads=8, ffn=14336, vocab=32000, window=4096),
}
"""`mistral_micro` is for parity tests: its vocab and ffn are no multiples of 4."""


def models() -> tuple[str, ...]:
    """The names `model NAME` may use."""
    return tuple(SIZES)


def build(name: str, changes: dict[str, int] | None = None) -> Model:
    """The op graph of a named model; `changes` replaces sizes."""
    return _build(name, SIZES[name], changes)


MODEL_TYPES = ("mistral",)


def read_config(name: str, fields: Mapping[str, Any]) -> tuple[Model, tuple[str, ...]]:
    """The model `name` with the sizes in `fields`, a Hugging Face config, and the fields not used. Raises
    ValueError."""
    config = Config(fields)
    config.must_be(FAMILY, hidden_act="silu", layer_types=None)
    size = replace(
        decoder_size(config, rope_theta=1e4, kv_heads=8),
        ffn=config.whole("intermediate_size"),
        window=config.window(default=4096),
    )
    return _build(name, size), config.unused


def _build(name: str, size: Size, changes: dict[str, int] | None = None) -> Model:
    return assemble(
        name=name,
        family=FAMILY,
        size=size,
        changes=changes,
        first=embedding(),
        blocks={BLOCK: attention(window=size.window) + feed_forward()},
        last=head(tied=size.tied),
    )
