"""Llama 4: grouped-query attention in chunks of 8192 tokens in three of four layers, experts beside a shared one.

Sizes are from the published `config.json` files of Scout and Maverick (Meta 2025), the text model alone.
Chunks are taken for windows: the same work for sequences of up to 8192 tokens. Every second layer of
Maverick has an MLP instead of experts. No `config.json` is read yet.
"""

from __future__ import annotations

from planc.catalog.parts.attention import attention
from planc.catalog.parts.ends import embedding, head
from planc.catalog.parts.experts import experts
from planc.catalog.parts.mlp import feed_forward
from planc.catalog.parts.part import BLOCK, assemble
from planc.catalog.parts.sizes import Size, layers_of
from planc.ir.model import Model, Section

FAMILY = "llama4"
CHUNKED, DENSE, DENSE_CHUNKED = "chunked", "dense", "dense_chunked"
"""Kinds of block besides the one with experts and whole attention."""
PERIOD = 4
"""The last layer of every so many attends to the whole sequence."""


def _published(experts: int, ffn: int = 0) -> Size:
    return Size(
        layers=48, embed=5120, heads=40, kv_heads=8, head_dim=128, ffn=ffn, experts=experts, expert_ffn=8192,
        shared_ffn=8192, vocab=202048, top_k=1, window=8192, rope_theta=5e5,
    )  # fmt: skip


SIZES: dict[str, Size] = {
    "llama4_scout": _published(16),
    "llama4_maverick": _published(128, ffn=16384),
}


def models() -> tuple[str, ...]:
    """The names `model NAME` may use."""
    return tuple(SIZES)


def build(name: str, changes: dict[str, int] | None = None) -> Model:
    """The op graph of a named model; `changes` replaces sizes."""
    size = SIZES[name]
    routed, plain = experts(shared=True), feed_forward()
    whole, chunked = attention(), attention(window=size.window)
    return assemble(
        name=name,
        family=FAMILY,
        size=size,
        changes=changes,
        first=embedding(),
        blocks={
            BLOCK: whole + routed,
            CHUNKED: chunked + routed,
            DENSE: whole + plain,
            DENSE_CHUNKED: chunked + plain,
        },
        last=head(),
        kinds=tuple(_kind(layer, dense=size.ffn > 0) for layer in range(layers_of(size, changes))),
    )


def _kind(layer: int, *, dense: bool) -> Section:
    """Layers count from 0; with `dense`, the even ones have no experts."""
    whole = layer % PERIOD == PERIOD - 1
    if dense and layer % 2 == 0:
        return DENSE if whole else DENSE_CHUNKED
    return BLOCK if whole else CHUNKED
