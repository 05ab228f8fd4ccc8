"""Qwen3, dense: the Llama block with a norm on each head's queries and keys.

Sizes are from the published `config.json` files (Qwen Team 2025, "Qwen3 Technical Report"). The models up to 4B tie the
head to the embedding.
"""

from __future__ import annotations

from dataclasses import replace

from planc.catalog.parts.attention import HeadNorm, attention
from planc.catalog.parts.config import Config, decoder_size
from planc.catalog.parts.family import ModelFamily
from planc.catalog.parts.mlp import feed_forward
from planc.catalog.parts.part import BLOCK, SLIDING
from planc.catalog.parts.sizes import Size
from planc.ir.model import Section


def _published(layers: int, embed: int, heads: int, ffn: int, tied: bool = False) -> Size:
    return Size(
        layers=layers, embed=embed, heads=heads, kv_heads=8, head_dim=128, ffn=ffn, vocab=151936,
        rope_theta=1e6, norm_eps=1e-6, tied=tied,
    )  # fmt: skip


SIZES: dict[str, Size] = {
    "qwen3_micro": Size(
        layers=4, embed=64, heads=8, kv_heads=4, head_dim=16, ffn=182, vocab=134, rope_theta=1e6, norm_eps=1e-6
    ),
    "qwen3_micro_tied": Size(
        layers=4, embed=64, heads=8, kv_heads=4, head_dim=16, ffn=182, vocab=138, rope_theta=1e6, norm_eps=1e-6,
        tied=True,
    ),
    "qwen3_0_6b": _published(28, 1024, 16, 3072, tied=True),
    "qwen3_1_7b": _published(28, 2048, 16, 6144, tied=True),
    "qwen3_4b": _published(36, 2560, 32, 9728, tied=True),
    "qwen3_8b": _published(36, 4096, 32, 12288),
    "qwen3_14b": _published(40, 5120, 40, 17408),
    "qwen3_32b": _published(64, 5120, 64, 25600),
}  # fmt: skip
"""`qwen3_micro` is for parity tests: its vocab and ffn are no multiples of 4, its heads wider than the model."""


def _read(config: Config) -> Size:
    config.must_be(hidden_act="silu", attention_bias=False)
    shared = decoder_size(config, rope_theta=1e4, kv_heads=32, head_dim=128)
    window, kinds = sliding_layers(config, shared.layers)
    return replace(shared, ffn=config.whole("intermediate_size"), window=window, kinds=kinds)


def sliding_layers(config: Config, layers: int) -> tuple[int, tuple[Section, ...]]:
    """Return the sliding window (tokens; 0: off) and the kind of each of the `layers`. `layer_types` of the `config`
    says which layers have a sliding window; without that field, those from `max_window_layers` on."""
    window, begin = config.window(default=4096), config.whole("max_window_layers", default=28, minimum=0)
    slides = config.windows(layers) or tuple(layer >= begin for layer in range(layers))
    if not config.flag("use_sliding_window", default=False) or not window:
        return 0, ()
    return window, tuple(SLIDING if s else BLOCK for s in slides)


FAMILY = ModelFamily(
    name="qwen3",
    sizes=SIZES,
    blocks=lambda size: {
        BLOCK: attention(q_norm=HeadNorm(), k_norm=HeadNorm()) + feed_forward(),
        SLIDING: attention(q_norm=HeadNorm(), k_norm=HeadNorm(), window=size.window) + feed_forward(),
    },
    model_types=("qwen3",),
    read=_read,
)
