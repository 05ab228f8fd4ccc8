"""MPT: multi-head attention, LayerNorm, GELU, tied head.

The released `mpt_7b` and `mpt_30b` have no biases, and use ALiBi, which has no parameters; their sizes are from their
`config.json`. The others are those of the published throughput tables (mosaicml/llm-foundry,
scripts/train/benchmarking), with biases and learned positions for sequences of 2048 tokens.
"""

from __future__ import annotations

from planc.catalog.gpt import blocks
from planc.catalog.parts.config import Config
from planc.catalog.parts.family import ModelFamily
from planc.catalog.parts.sizes import Size


def _bench(layers: int, embed: int, heads: int) -> Size:
    return Size(
        layers=layers, embed=embed, heads=heads, ffn=4 * embed, vocab=50368, positions=2048, biased=True, tied=True
    )


SIZES: dict[str, Size] = {
    "mpt_micro": Size(layers=4, embed=64, heads=8, ffn=182, vocab=134, tied=True),
    "mpt_125m": _bench(12, 768, 12),
    "mpt_350m": _bench(24, 1024, 16),
    "mpt_760m": _bench(24, 1536, 12),
    "mpt_1b": _bench(24, 2048, 16),
    "mpt_3b": _bench(32, 2560, 20),
    "mpt_7b": Size(layers=32, embed=4096, heads=32, ffn=4 * 4096, vocab=50432, tied=True),
    "mpt_13b": _bench(40, 5120, 40),
    "mpt_30b": Size(layers=48, embed=7168, heads=64, ffn=4 * 7168, vocab=50432, tied=True),
    "mpt_70b": _bench(80, 8192, 64),
}
"""`mpt_micro` is for parity tests: its vocab and ffn are not multiples of 4."""


def _read(config: Config) -> Size:
    inner = config.inner("attn_config")
    config.must_be(no_bias=True, norm_type=("low_precision_layernorm", "layernorm"), logit_scale=None)
    inner.must_be(attn_type="multihead_attention", qk_ln=False, rope=False, clip_qkv=None)
    embed, heads = config.whole("d_model", "hidden_size"), config.whole("n_heads", "num_attention_heads")
    alibi = inner.flag("alibi", default=True)
    return Size(
        layers=config.layers("n_layers", "num_hidden_layers"),
        embed=embed,
        heads=heads,
        head_dim=config.head_dim(embed, heads),
        ffn=embed * config.whole("expansion_ratio", default=4),
        vocab=config.whole("vocab_size"),
        positions=0 if alibi else config.whole("max_seq_len"),
        norm_eps=config.number("layer_norm_epsilon", default=1e-5),
        tied=config.flag("tie_word_embeddings", default=True),
    )


FAMILY = ModelFamily(name="mpt", sizes=SIZES, blocks=blocks, model_types=("mpt",), read=_read)
