"""Llama 4: grouped-query attention in chunks of 8192 tokens in three of four layers, routed experts and a shared one.

Sizes are from the published `config.json` files of Scout and Maverick (Meta 2025), the text model alone. Chunks are
modelled as sliding windows: the same work for sequences of up to 8192 tokens. Every second layer of Maverick has an MLP
instead of experts. `config.json` files are not read yet.
"""

from __future__ import annotations

from planc.catalog.parts.attention import attention
from planc.catalog.parts.experts import experts
from planc.catalog.parts.family import ModelFamily
from planc.catalog.parts.mlp import feed_forward
from planc.catalog.parts.part import BLOCK, DENSE, Part
from planc.catalog.parts.sizes import Size
from planc.ir.model import Section

CHUNKED, DENSE_CHUNKED = "chunked", "dense_chunked"
"""Kinds of block whose attention is chunked, with experts and without."""
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
    whole = layer % PERIOD == PERIOD - 1
    if dense and layer % 2 == 0:
        return DENSE if whole else DENSE_CHUNKED
    return BLOCK if whole else CHUNKED


FAMILY = ModelFamily(
    name="llama4",
    sizes=SIZES,
    blocks=_blocks,
    kinds=lambda name, size, layers: [_kind(layer, dense=size.ffn > 0) for layer in range(layers)],
)
