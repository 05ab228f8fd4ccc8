"""The GPT-3 architecture: multi-head attention, learned positions, LayerNorm, GELU, biases, tied head.

Sizes of GPT-3 are from table 2.1 of Brown et al. 2020, "Language Models are Few-Shot Learners" (13B with 5120, i.e. 40
heads of 128, where the table prints 5140); its attention is modelled as dense in every layer, although half of the
published layers have banded attention. Sizes of the Megatron models are from table 1 of Narayanan et al. 2021,
"Efficient Large-Scale Language Model Training on GPU Clusters", and table 3 of Korthikanti et al. 2022, "Reducing
Activation Recomputation in Large Transformer Models"; `turing_530b` is Megatron-Turing NLG (Smith et al. 2022), with
its vocabulary padded to 51200.
"""

from __future__ import annotations

from functools import partial

from planc.catalog.parts.attention import INPUTS, attention
from planc.catalog.parts.config import Config
from planc.catalog.parts.family import ModelFamily
from planc.catalog.parts.mlp import feed_forward
from planc.catalog.parts.part import BLOCK, Part
from planc.catalog.parts.sizes import Size
from planc.catalog.parts.steps import LAYER, RMS
from planc.ir.model import Section


def _published(layers: int, embed: int, heads: int, vocab: int, *, kv_heads: int = 0, tied: bool = True) -> Size:
    return Size(
        layers=layers, embed=embed, heads=heads, kv_heads=kv_heads, ffn=4 * embed, vocab=vocab, positions=2048,
        biased=True, tied=tied,
    )  # fmt: skip


_gpt3 = partial(_published, vocab=50257)
_megatron = partial(_published, vocab=51200)

SIZES: dict[str, Size] = {
    "gpt_micro": Size(layers=4, embed=64, heads=8, ffn=182, vocab=134, positions=64, biased=True, tied=True),
    "gpt3_6_7b": _gpt3(32, 4096, 32),
    "gpt3_13b": _gpt3(40, 5120, 40),
    "gpt3_175b": _gpt3(96, 12288, 96),
    "megatron_1_7b": _megatron(24, 2304, 24),
    "megatron_3_6b": _megatron(30, 3072, 32),
    "megatron_7_5b": _megatron(36, 4096, 32),
    "megatron_18b": _megatron(40, 6144, 48),
    "megatron_22b": _megatron(48, 6144, 64),
    "megatron_39b": _megatron(48, 8192, 64),
    "megatron_76b": _megatron(60, 10240, 80),
    "megatron_145b": _megatron(80, 12288, 96),
    "megatron_175b": _megatron(96, 12288, 96),
    "megatron_310b": _megatron(96, 16384, 128),
    "megatron_530b": _megatron(105, 20480, 128),
    "megatron_1t": _megatron(128, 25600, 160),
    "turing_530b": _megatron(105, 20480, 128),
    "gpt_grouped": _megatron(32, 4096, 32, kv_heads=8, tied=False),
}
"""`gpt_micro` is for parity tests: its vocab and ffn are not multiples of 4. `gpt_grouped` is the block of
Megatron-LM's functional tests: grouped query heads, and an untied head."""


def blocks(size: Size) -> dict[Section, Part]:
    """Return the ops of the only kind of block, for models of this `size`. `size.biased` adds biases and LayerNorm."""
    before, all_of = (LAYER, (*INPUTS, "wo", "w1", "w2")) if size.biased else (RMS, ())
    return {
        BLOCK: attention(grouped=size.kv_heads > 0, rotary=False, biased=all_of, before=before)
        + feed_forward(gated=False, biased=all_of, before=before)
    }


def _read(config: Config) -> Size:
    config.must_be(add_cross_attention=False)
    embed, heads = config.whole("n_embd", "hidden_size"), config.whole("n_head", "num_attention_heads")
    return Size(
        layers=config.layers("n_layer", "num_hidden_layers"),
        embed=embed,
        heads=heads,
        head_dim=config.head_dim(embed, heads),
        ffn=config.whole("n_inner", default=4 * embed),
        vocab=config.whole("vocab_size"),
        positions=config.whole("n_positions", "max_position_embeddings", "n_ctx", default=1024),
        biased=True,
        norm_eps=config.number("layer_norm_epsilon", default=1e-5),
        tied=config.flag("tie_word_embeddings", default=True),
    )


FAMILY = ModelFamily(name="gpt", sizes=SIZES, blocks=blocks, model_types=("gpt2",), read=_read)
