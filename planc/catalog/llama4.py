"""Llama 4: grouped-query attention in chunks of 8192 tokens in three of four layers, routed experts and a shared one.

Sizes are from the published `config.json` files of Scout and Maverick (Meta 2025), the text model alone. Chunks are
modelled as sliding windows: the same work for sequences of up to 8192 tokens. Every second layer of Maverick has an MLP
instead of experts. A config's norms of queries and keys have no parameters, and are left out.
"""

from __future__ import annotations

from dataclasses import replace

from planc.catalog.parts.attention import attention
from planc.catalog.parts.config import Config, decoder_size
from planc.catalog.parts.experts import experts
from planc.catalog.parts.family import ModelFamily
from planc.catalog.parts.mlp import feed_forward
from planc.catalog.parts.part import BLOCK, DENSE, Part
from planc.catalog.parts.sizes import Size
from planc.ir.model import Section

CHUNKED, DENSE_CHUNKED = "chunked", "dense_chunked"
"""Kinds of block whose attention is chunked, with experts and without."""
KINDS = {
    (False, False): BLOCK,
    (False, True): CHUNKED,
    (True, False): DENSE,
    (True, True): DENSE_CHUNKED,
}
"""The kind of block of a layer that has an MLP instead of experts, or not, and whose attention is chunked, or not."""
PERIOD = 4
"""The last of this number of layers has full attention."""


def _published(experts: int, ffn: int = 0) -> Size:
    return Size(
        layers=48, embed=5120, heads=40, kv_heads=8, head_dim=128, ffn=ffn, experts=experts, expert_ffn=8192,
        shared_ffn=8192, vocab=202048, top_k=1, window=8192, rope_theta=5e5,
    )  # fmt: skip


SIZES: dict[str, Size] = {
    "llama4_scout": _published(16),
    "llama4_maverick": _published(128, ffn=16384),
}


def _blocks(size: Size) -> dict[Section, Part]:
    routed, plain = experts(shared=True), feed_forward()
    whole, chunked = attention(), attention(window=size.window)
    return {BLOCK: whole + routed, CHUNKED: chunked + routed, DENSE: whole + plain, DENSE_CHUNKED: chunked + plain}


def _kind(layer: int, *, dense: bool) -> Section:
    """Return the kind of block of `layer`: with `dense`, layers 0, 2, 4, ... have an MLP and the others experts."""
    return KINDS[dense and layer % 2 == 0, not _is_whole(layer)]


def _is_whole(layer: int) -> bool:
    """True if `layer` has full attention, and no rotary positions."""
    return layer % PERIOD == PERIOD - 1


def _read(config: Config) -> Size:
    config.must_be(hidden_act="silu", attention_bias=False)
    shared = decoder_size(config, rope_theta=5e5, kv_heads=8, head_dim=128, norm_eps=1e-5)
    layers, width = shared.layers, config.whole("intermediate_size")
    step = config.whole("interleave_moe_layer_step", default=1)
    routed = config.numbers("moe_layers") or tuple(range(step - 1, layers, step))
    return replace(
        shared,
        ffn=config.whole("intermediate_size_mlp", default=16384) if len({*routed}) < layers else 0,
        experts=config.whole("num_local_experts", default=16),
        expert_ffn=width,
        shared_ffn=width,
        top_k=config.whole("num_experts_per_tok", default=1),
        window=config.whole("attention_chunk_size", default=8192),
        kinds=tuple(KINDS[n not in routed, not full] for n, full in enumerate(config.unrotated(layers))),
    )


FAMILY = ModelFamily(
    name="llama4",
    sizes=SIZES,
    blocks=_blocks,
    kinds=lambda name, size, layers: size.kinds or [_kind(n, dense=size.ffn > 0) for n in range(layers)],
    model_types=("llama4_text",),
    read=_read,
)
