"""Gemma 3: the gated block with a norm per head and sliding-window attention in five of six layers; tied head.

Sizes are from the published `config.json` files (Gemma Team 2025, "Gemma 3 Technical Report"), the text model alone.
The second norms after attention and MLP are left out; models that are read from a config have them.
"""

from __future__ import annotations

from planc.catalog.parts.attention import HeadNorm, attention
from planc.catalog.parts.family import ModelFamily
from planc.catalog.parts.mlp import feed_forward
from planc.catalog.parts.part import BLOCK, SLIDING
from planc.catalog.parts.sizes import Size

PERIOD = 6
"""The last of this number of layers has full attention."""


def _published(layers: int, embed: int, heads: int, kv_heads: int, head_dim: int, ffn: int) -> Size:
    return Size(
        layers=layers, embed=embed, heads=heads, kv_heads=kv_heads, head_dim=head_dim, ffn=ffn, vocab=262144,
        window=1024, rope_theta=1e6, norm_eps=1e-6, tied=True,
    )  # fmt: skip


SIZES: dict[str, Size] = {
    "gemma3_4b": _published(34, 2560, 8, 4, 256, 10240),
    "gemma3_12b": _published(48, 3840, 16, 8, 256, 15360),
    "gemma3_27b": _published(62, 5376, 32, 16, 128, 21504),
}


FAMILY = ModelFamily(
    name="gemma3",
    sizes=SIZES,
    blocks=lambda size: {
        BLOCK: attention(q_norm=HeadNorm(), k_norm=HeadNorm()) + feed_forward(),
        SLIDING: attention(q_norm=HeadNorm(), k_norm=HeadNorm(), window=size.window) + feed_forward(),
    },
    kinds=lambda name, size, layers: [SLIDING if (layer + 1) % PERIOD else BLOCK for layer in range(layers)],
)
