"""Mistral: the Llama block with sliding-window attention.

Sizes are from the published `config.json` (Jiang et al. 2023, "Mistral 7B"). Later releases of the 7B have no window;
their config says so.
"""

from __future__ import annotations

from dataclasses import replace

from planc.catalog.parts.attention import attention
from planc.catalog.parts.config import Config, decoder_size
from planc.catalog.parts.family import ModelFamily
from planc.catalog.parts.mlp import feed_forward
from planc.catalog.parts.part import BLOCK
from planc.catalog.parts.sizes import Size

SIZES: dict[str, Size] = {
    "mistral_micro": Size(layers=4, embed=64, heads=8, kv_heads=4, ffn=182, vocab=134, window=16),
    "mistral_7b": Size(layers=32, embed=4096, heads=32, kv_heads=8, ffn=14336, vocab=32000, window=4096),
}
"""`mistral_micro` is for parity tests: its vocab and ffn are not multiples of 4."""


def _read(config: Config) -> Size:
    config.must_be(hidden_act="silu", layer_types=None)
    return replace(
        decoder_size(config, rope_theta=1e4, kv_heads=8),
        ffn=config.whole("intermediate_size"),
        window=config.window(default=4096),
    )


FAMILY = ModelFamily(
    name="mistral",
    sizes=SIZES,
    blocks=lambda size: {BLOCK: attention(window=size.window) + feed_forward()},
    model_types=("mistral",),
    read=_read,
)
