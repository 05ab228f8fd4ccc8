"""Nemotron-H and Nemotron 3: each layer is only one of: a Mamba-2 mixer, attention, a feed-forward layer or experts.

Sizes are from the published `config.json` files (NVIDIA 2025, "Nemotron-H", arXiv:2504.03624; NVIDIA 2025, "Nemotron 3
Nano" and 2026, "Nemotron 3 Super"). A model's pattern has one letter per layer. Attention has no positional encoding.
Super's experts work on a projection of the tokens; `mtp_layers = 2` adds its MTP modules, with attention and experts
each, which its 120 billion parameters do not count. Its training runs one of them twice; here each has its own weights.
The router's balancing biases, which have no gradient, are left out.
"""

from __future__ import annotations

from planc.catalog.parts.attention import attention
from planc.catalog.parts.config import Config
from planc.catalog.parts.experts import squared_relu_experts
from planc.catalog.parts.family import ModelFamily
from planc.catalog.parts.mamba import mamba
from planc.catalog.parts.mlp import squared_relu_feed_forward
from planc.catalog.parts.mtp import mtp
from planc.catalog.parts.part import Part
from planc.catalog.parts.sizes import Size
from planc.ir.model import Routing, Section

MIXER, ATTENTION, FEED_FORWARD, EXPERTS = "mixer", "attention", "feed_forward", "experts"
"""Kinds of block."""
LETTERS: dict[str, Section] = {"M": MIXER, "*": ATTENTION, "-": FEED_FORWARD, "E": EXPERTS}
"""Letters of a pattern."""


def _kinds(pattern: str) -> tuple[Section, ...]:
    unknown = sorted(set(pattern) - set(LETTERS))
    if unknown:
        raise ValueError(f"the pattern has the letter {unknown[0]!r}; layers are {' '.join(LETTERS)}")
    return tuple(LETTERS[letter] for letter in pattern)


ROUTING = Routing(scores="sigmoid", scale=2.5)

SIZES: dict[str, Size] = {
    "nemotron_h_micro": Size(
        layers=6, kinds=_kinds("MEM*-M"), embed=64, heads=8, kv_heads=4, head_dim=8, ffn=182, experts=8, expert_ffn=90,
        shared_ffn=90, ssm_heads=8, ssm_head_dim=8, ssm_groups=4, ssm_state=16, ssm_chunk=16, ssm_conv=4, vocab=134,
        top_k=2, routing=ROUTING,
    ),
    "nemotron_h_8b": Size(
        layers=52, kinds=_kinds("M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"), embed=4096, heads=32,
        kv_heads=8, head_dim=128, ffn=21504, ssm_heads=128, ssm_head_dim=64, ssm_groups=8, ssm_state=128,
        ssm_chunk=128, ssm_conv=4, vocab=131072,
    ),
    "nemotron_3_nano": Size(
        layers=52, kinds=_kinds("MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"), embed=2688, heads=32,
        kv_heads=2, head_dim=128, experts=128, expert_ffn=1856, shared_ffn=3712, ssm_heads=64, ssm_head_dim=64,
        ssm_groups=8, ssm_state=128, ssm_chunk=128, ssm_conv=4, vocab=131072, top_k=6, routing=ROUTING,
    ),
    "nemotron_3_super": Size(
        layers=88, kinds=_kinds(
            "MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM*EMEMEMEME"
        ), embed=4096, heads=32, kv_heads=2, head_dim=128, experts=512, expert_ffn=2688, shared_ffn=5376,
        moe_latent=1024, ssm_heads=128, ssm_head_dim=64, ssm_groups=8, ssm_state=128, ssm_chunk=128, ssm_conv=4,
        vocab=131072, top_k=22, routing=Routing(scores="sigmoid", scale=5.0),
    ),
}  # fmt: skip
"""`nemotron_h_micro` is for small plans: it has every kind of layer."""


def _read(config: Config) -> Size:
    config.must_be(
        mlp_hidden_act="relu2", mamba_hidden_act="silu", attention_bias=False, mlp_bias=False, use_bias=False,
        mamba_proj_bias=False, use_conv_bias=True,
    )  # fmt: skip
    embed, heads = config.whole("hidden_size"), config.whole("num_attention_heads")
    kinds = _kinds_of(config)
    routed = EXPERTS in kinds
    return Size(
        layers=len(kinds),
        kinds=kinds,
        embed=embed,
        heads=heads,
        kv_heads=config.whole("num_key_value_heads", default=8),
        head_dim=config.whole("head_dim", default=128),
        ffn=config.whole("intermediate_size") if FEED_FORWARD in kinds else 0,
        experts=config.whole("n_routed_experts", "num_local_experts") if routed else 0,
        expert_ffn=config.whole("moe_intermediate_size") if routed else 0,
        shared_ffn=_shared(config) if routed else 0,
        moe_latent=config.whole("moe_latent_size", default=0, minimum=0) if routed else 0,
        top_k=config.whole("num_experts_per_tok", default=2) if routed else 0,
        routing=_routing(config) if routed else Routing(),
        ssm_heads=config.whole("mamba_num_heads", default=128),
        ssm_head_dim=config.whole("mamba_head_dim", default=64),
        ssm_groups=config.whole("n_groups", "mamba_n_groups", default=8),
        ssm_state=config.whole("ssm_state_size", default=128),
        ssm_chunk=config.whole("chunk_size", "mamba_chunk_size", default=128),
        ssm_conv=config.whole("conv_kernel", "mamba_d_conv", default=4),
        vocab=config.whole("vocab_size"),
        mtp_layers=config.whole("mtp_layers", default=0, minimum=0) if routed else 0,
        norm_eps=config.number("layer_norm_epsilon", default=1e-5),
        tied=config.flag("tie_word_embeddings", default=False),
    )


WORDS: dict[str, Section] = {
    **dict.fromkeys(("mamba", "linear_attention"), MIXER),
    **dict.fromkeys(("attention", "full_attention"), ATTENTION),
    **dict.fromkeys(("mlp",), FEED_FORWARD),
    **dict.fromkeys(("moe",), EXPERTS),
}
"""Kinds of layers by their names in configs."""


def _kinds_of(config: Config) -> tuple[Section, ...]:
    """Return the kind of each layer: the config has a list of names or a pattern of letters."""
    words = config.value("layers_block_type", "layer_types")
    pattern = config.value("hybrid_override_pattern")
    layers = config.value("num_hidden_layers")
    if isinstance(words, list) and words and all(str(w) in WORDS for w in words):
        kinds = tuple(WORDS[str(w)] for w in words)
    elif words is None and isinstance(pattern, str) and pattern:
        kinds = _kinds(pattern)
    else:
        raise ValueError(
            f"neither layers_block_type (of {', '.join(WORDS)}) nor hybrid_override_pattern says the layers"
        )
    if layers is not None and layers != len(kinds):
        raise ValueError(f"num_hidden_layers = {layers!r}, and the pattern has {len(kinds)} layers")
    return kinds


def _shared(config: Config) -> int:
    if config.whole("n_shared_experts", default=1, minimum=0) != 1:
        raise ValueError("n_shared_experts is not 1, and planc's nemotron_h family has one")
    return config.whole("moe_shared_expert_intermediate_size")


def _routing(config: Config) -> Routing:
    return Routing(
        scores="sigmoid",
        normed=config.flag("norm_topk_prob", default=True),
        scale=config.number("routed_scaling_factor", default=1.0),
        groups=config.whole("n_group", default=1),
        groups_kept=config.whole("topk_group", default=1),
    )


def _blocks(size: Size) -> dict[Section, Part]:
    return {
        MIXER: mamba(),
        ATTENTION: attention(rotary=False, target="hidden"),
        FEED_FORWARD: squared_relu_feed_forward(),
        EXPERTS: squared_relu_experts(latent=size.moe_latent > 0),
    }


def _first_kinds(name: str, size: Size, layers: int) -> tuple[Section, ...]:
    if layers > len(size.kinds):
        raise ValueError(f"the pattern of {name} has {len(size.kinds)} layers, not {layers}")
    return size.kinds[:layers]


def _mtp(size: Size) -> Part | None:
    routed = squared_relu_experts(latent=size.moe_latent > 0, source="hidden.mid")
    return mtp(attention(rotary=False) + routed, tied=size.tied) if size.experts else None


FAMILY = ModelFamily(
    name="nemotron_h",
    sizes=SIZES,
    blocks=_blocks,
    kinds=_first_kinds,
    mtp=_mtp,
    model_types=("nemotron_h",),
    read=_read,
)
