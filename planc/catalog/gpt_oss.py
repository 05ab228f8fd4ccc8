"""gpt-oss: experts in every layer, attention with sinks and a sliding window in every other layer, biases.

Sizes are from the published `config.json` files (OpenAI 2025, "gpt-oss-120b & gpt-oss-20b Model Card"). RoPE scaling is
left out, except for models that are read from a config.
"""

from __future__ import annotations

from dataclasses import replace

from planc.catalog.parts.attention import INPUTS, attention
from planc.catalog.parts.config import Config, decoder_size
from planc.catalog.parts.experts import experts
from planc.catalog.parts.family import ModelFamily
from planc.catalog.parts.part import BLOCK, SLIDING, Part
from planc.catalog.parts.sizes import Size
from planc.ir.model import Section

KINDS = (SLIDING, BLOCK)
"""The kinds of alternating layers."""


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
"""`gpt_oss_micro` is for parity tests: its vocab and expert_ffn are not multiples of 4."""


def _read(config: Config) -> Size:
    config.must_be(hidden_act="silu", attention_bias=True)
    shared = decoder_size(config, rope_theta=150000.0, kv_heads=8, head_dim=64, norm_eps=1e-5)
    return replace(
        shared,
        experts=config.whole("num_local_experts", "num_experts", default=128),
        expert_ffn=config.whole("intermediate_size"),
        top_k=config.whole("num_experts_per_tok", "experts_per_token", default=4),
        window=config.window(default=128),
        kinds=tuple(KINDS[not slides] for slides in config.windows(shared.layers) or ()),
    )


def _blocks(size: Size) -> dict[Section, Part]:
    ffn = experts(biased=True)
    return {
        SLIDING: attention(window=size.window, biased=(*INPUTS, "wo"), sinks=True) + ffn,
        BLOCK: attention(biased=(*INPUTS, "wo"), sinks=True) + ffn,
    }


FAMILY = ModelFamily(
    name="gpt_oss",
    sizes=SIZES,
    blocks=_blocks,
    kinds=lambda name, size, layers: size.kinds or [KINDS[layer % 2] for layer in range(layers)],
    model_types=("gpt_oss",),
    read=_read,
)
