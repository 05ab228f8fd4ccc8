"""Mixtral: the Llama block with a mixture of experts instead of the MLP.

Sizes are from the published `config.json` files (Jiang et al. 2024, "Mixtral of Experts").
"""

from __future__ import annotations

from dataclasses import replace

from planc.catalog.parts.attention import attention
from planc.catalog.parts.config import Config, decoder_size
from planc.catalog.parts.experts import experts
from planc.catalog.parts.family import ModelFamily
from planc.catalog.parts.part import BLOCK
from planc.catalog.parts.sizes import Size


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
"""`mixtral_micro` is for parity tests: its vocab and expert_ffn are not multiples of 4."""


def _read(config: Config) -> Size:
    config.must_be(hidden_act="silu")
    return replace(
        decoder_size(config, rope_theta=1e6, kv_heads=8, norm_eps=1e-5),
        experts=config.whole("num_local_experts", "num_experts", default=8),
        expert_ffn=config.whole("intermediate_size"),
        top_k=config.whole("num_experts_per_tok", default=2),
        window=config.window(),
    )


FAMILY = ModelFamily(
    name="mixtral",
    sizes=SIZES,
    blocks=lambda size: {BLOCK: attention(window=size.window) + experts()},
    model_types=("mixtral",),
    read=_read,
)
