"""Qwen3, dense: the Llama block with a norm over each head's queries and keys.

Sizes are from the published `config.json` files (Qwen Team 2025, "Qwen3 Technical Report"). The models
up to 4B tie the head to the embedding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from planc.catalog.parts.attention import attention
from planc.catalog.parts.config import Config, Scaling
from planc.catalog.parts.ends import embedding, head
from planc.catalog.parts.mlp import feed_forward
from planc.catalog.parts.part import BLOCK, assemble
from planc.catalog.parts.sizes import dims_of
from planc.ir.model import Model

FAMILY = "qwen3"
SLIDING = "sliding"
"""The kind of block whose attention has a window."""


@dataclass(frozen=True, kw_only=True)
class Size:
    layers: int
    embed: int
    heads: int
    kv_heads: int
    head_dim: int = 128
    ffn: int
    vocab: int = 151936
    window: int = 0
    sliding: tuple[bool, ...] = ()
    """For each layer, whether its attention has the window; () when none has."""
    rope_theta: float = 1e6
    rope_scaling: Scaling = field(default_factory=dict)
    norm_eps: float = 1e-6
    tied: bool = False


SIZES: dict[str, Size] = {
    "qwen3_micro": Size(layers=4, embed=64, heads=8, kv_heads=4, head_dim=16, ffn=182, vocab=134),
    "qwen3_0_6b": Size(layers=28, embed=1024, heads=16, kv_heads=8, ffn=3072, tied=True),
    "qwen3_1_7b": Size(layers=28, embed=2048, heads=16, kv_heads=8, ffn=6144, tied=True),
    "qwen3_4b": Size(layers=36, embed=2560, heads=32, kv_heads=8, ffn=9728, tied=True),
    "qwen3_8b": Size(layers=36, embed=4096, heads=32, kv_heads=8, ffn=12288),
    "qwen3_14b": Size(layers=40, embed=5120, heads=40, kv_heads=8, ffn=17408),
    "qwen3_32b": Size(layers=64, embed=5120, heads=64, kv_heads=8, ffn=25600),
}
"""`qwen3_micro` is for parity tests: its vocab and ffn are no multiples of 4, its heads wider than the model."""


def models() -> tuple[str, ...]:
    """The names `model NAME` may use."""
    return tuple(SIZES)


def build(name: str, changes: dict[str, int] | None = None) -> Model:
    """The op graph of a named model; `changes` replaces sizes."""
    return _build(name, SIZES[name], changes)


MODEL_TYPES = ("qwen3",)


def read_config(name: str, fields: Mapping[str, Any]) -> tuple[Model, tuple[str, ...]]:
    """The model of a Hugging Face config, and the fields that were not used. Raises ValueError."""
    config = Config(fields)
    config.must_be(FAMILY, hidden_act="silu", attention_bias=False)
    embed, heads = config.whole("hidden_size"), config.whole("num_attention_heads")
    layers = config.layers("num_hidden_layers")
    theta, scaling = config.rope(1e4)
    window, sliding = _windows(config, layers)
    size = Size(
        layers=layers,
        embed=embed,
        heads=heads,
        kv_heads=config.whole("num_key_value_heads", default=32),
        head_dim=config.head_dim(embed, heads, default=128),
        ffn=config.whole("intermediate_size"),
        vocab=config.whole("vocab_size"),
        window=window,
        sliding=sliding,
        rope_theta=theta,
        rope_scaling=scaling,
        norm_eps=config.number("rms_norm_eps", default=1e-6),
        tied=config.flag("tie_word_embeddings", default=False),
    )
    return _build(name, size), config.unused


def _windows(config: Config, layers: int) -> tuple[int, tuple[bool, ...]]:
    """The window, and which layers have it: those of `layer_types`, or all from `max_window_layers` on."""
    window, begin = config.window(default=4096), config.whole("max_window_layers", default=28, least=0)
    kinds = config.windows(layers)
    if not config.flag("use_sliding_window", default=False) or not window:
        return 0, ()
    return window, kinds or tuple(layer >= begin for layer in range(layers))


def _build(name: str, size: Size, changes: dict[str, int] | None = None) -> Model:
    return assemble(
        name=name,
        family=FAMILY,
        sizes=dims_of(size, changes),
        first=embedding(),
        blocks={
            BLOCK: attention(qk_norm=True) + feed_forward(),
            SLIDING: attention(qk_norm=True, window=size.window) + feed_forward(),
        },
        last=head(tied=size.tied),
        kinds=tuple(SLIDING if slides else BLOCK for slides in size.sliding) or (BLOCK,),
        rope_theta=size.rope_theta,
        rope_scaling=size.rope_scaling,
        norm_eps=size.norm_eps,
        tied=size.tied,
    )
