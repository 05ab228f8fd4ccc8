"""The dense Llama family: grouped-query attention, rotary positions, RMSNorm, gated MLP.

Parameter names and storage shapes are those of the bundled torch and JAX models; linear weights are stored [out, in].
Sizes of the published models are from their `config.json` files. RoPE scaling is left out, except for models that
are read from a config.
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
    "llama_tiny": Size(layers=4, embed=256, heads=8, kv_heads=4, ffn=688, vocab=256),
    "llama_micro": Size(layers=4, embed=64, heads=8, kv_heads=4, ffn=182, vocab=134),
    "llama_micro_tied": Size(layers=4, embed=64, heads=8, kv_heads=4, ffn=182, vocab=138, tied=True),
    "llama2_7b": Size(layers=32, embed=4096, heads=32, kv_heads=32, ffn=11008, vocab=32000),
    "llama2_13b": Size(layers=40, embed=5120, heads=40, kv_heads=40, ffn=13824, vocab=32000),
    "llama2_70b": Size(layers=80, embed=8192, heads=64, kv_heads=8, ffn=28672, vocab=32000),
    "llama3_8b": Size(layers=32, embed=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256, rope_theta=5e5),
    "llama3_70b": Size(layers=80, embed=8192, heads=64, kv_heads=8, ffn=28672, vocab=128256, rope_theta=5e5),
    "llama3_405b": Size(layers=126, embed=16384, heads=128, kv_heads=8, ffn=53248, vocab=128256, rope_theta=5e5),
    "llama3_2_1b": Size(layers=16, embed=2048, heads=32, kv_heads=8, ffn=8192, vocab=128256, rope_theta=5e5, tied=True),
    "llama3_2_3b": Size(layers=28, embed=3072, heads=24, kv_heads=8, ffn=8192, vocab=128256, rope_theta=5e5, tied=True),
}
"""`llama_tiny` trains on a laptop in minutes; `llama_micro` is for parity tests: its vocab and ffn are not multiples of
4 and its heads are grouped. In `llama_micro_tied` the head uses the embedding's weight."""
SIZES |= {
    "llama3_1_8b": SIZES["llama3_8b"],
    "llama3_1_70b": SIZES["llama3_70b"],
    "llama3_1_405b": SIZES["llama3_405b"],
}


def _read(config: Config) -> Size:
    config.must_be(hidden_act="silu", attention_bias=False, mlp_bias=False, sliding_window=None)
    return replace(decoder_size(config, rope_theta=1e4), ffn=config.whole("intermediate_size"))


FAMILY = ModelFamily(
    name="llama",
    sizes=SIZES,
    blocks=lambda size: {BLOCK: attention() + feed_forward()},
    model_types=("llama",),
    read=_read,
)
