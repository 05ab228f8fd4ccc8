"""Qwen2 and Qwen2.5, dense: the Llama block with biases in the projections of queries, keys and values.

Sizes are from the published `config.json` files (Qwen Team 2024, "Qwen2.5 Technical Report"). The models up to 3B
tie the head to the embedding.
"""

from __future__ import annotations

from dataclasses import replace

from planc.catalog.parts.attention import INPUTS, attention
from planc.catalog.parts.config import Config, decoder_size
from planc.catalog.parts.family import ModelFamily
from planc.catalog.parts.mlp import feed_forward
from planc.catalog.parts.part import BLOCK, SLIDING
from planc.catalog.parts.sizes import Size
from planc.catalog.qwen3 import sliding_layers


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
"""`qwen2_micro` is for tests: its vocab and ffn are not multiples of 4."""


def _read(config: Config) -> Size:
    config.must_be(hidden_act="silu")
    shared = decoder_size(config, rope_theta=1e4, kv_heads=32)
    window, kinds = sliding_layers(config, shared.layers)
    return replace(shared, ffn=config.whole("intermediate_size"), window=window, kinds=kinds)


FAMILY = ModelFamily(
    name="qwen2",
    sizes=SIZES,
    blocks=lambda size: {
        BLOCK: attention(biased=INPUTS) + feed_forward(),
        SLIDING: attention(biased=INPUTS, window=size.window) + feed_forward(),
    },
    model_types=("qwen2",),
    read=_read,
)
