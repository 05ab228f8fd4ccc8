"""DeepSeek V2 and V3: latent attention, dense first layers, then routed experts and a shared one.

Sizes are from the published `config.json` files (DeepSeek-AI 2024, "DeepSeek-V2" and "DeepSeek-V3 Technical Report").
The published shared experts are modelled as one MLP with the sum of their widths, `shared_ffn`. V3's module for
multi-token prediction is included if a plan sets `mtp_layers = 1`; the 671 billion parameters do not count it. The
router's balancing biases, which have no gradient, are left out.
"""

from __future__ import annotations

from dataclasses import replace

from planc.catalog.parts.config import Config
from planc.catalog.parts.experts import experts
from planc.catalog.parts.family import ModelFamily
from planc.catalog.parts.latent import latent_attention
from planc.catalog.parts.mlp import feed_forward
from planc.catalog.parts.mtp import mtp
from planc.catalog.parts.part import BLOCK, DENSE, Part
from planc.catalog.parts.sizes import Size
from planc.ir.model import Routing, Section

V3 = Routing(scores="sigmoid", scale=2.5, groups=8, groups_kept=4)
"""Routing of the published configs."""

SIZES: dict[str, Size] = {
    "deepseek_micro": Size(
        layers=4, dense_layers=1, embed=64, heads=8, head_dim=8, nope_dim=8, rope_dim=4, q_lora=24, kv_lora=16,
        ffn=182, experts=8, expert_ffn=90, shared_ffn=90, vocab=134, top_k=2, norm_eps=1e-6,
        routing=replace(V3, groups=4, groups_kept=2),
    ),
    "deepseek_v2_lite": Size(
        layers=27, dense_layers=1, embed=2048, heads=16, head_dim=128, nope_dim=128, rope_dim=64, kv_lora=512,
        ffn=10944, experts=64, expert_ffn=1408, shared_ffn=2 * 1408, vocab=102400, top_k=6, norm_eps=1e-6,
        routing=Routing(normed=False),
    ),
    "deepseek_v2": Size(
        layers=60, dense_layers=1, embed=5120, heads=128, head_dim=128, nope_dim=128, rope_dim=64, q_lora=1536,
        kv_lora=512, ffn=12288, experts=160, expert_ffn=1536, shared_ffn=2 * 1536, vocab=102400, top_k=6,
        norm_eps=1e-6, routing=Routing(normed=False, scale=16.0, groups=8, groups_kept=3),
    ),
    "deepseek_v3": Size(
        layers=61, dense_layers=3, embed=7168, heads=128, head_dim=128, nope_dim=128, rope_dim=64, q_lora=1536,
        kv_lora=512, ffn=18432, experts=256, expert_ffn=2048, shared_ffn=2048, vocab=129280, top_k=8,
        norm_eps=1e-6, routing=V3,
    ),
}  # fmt: skip
"""Without `q_lora` the queries are projected in one step. `deepseek_micro` is for parity tests: its vocab and inner
widths are not multiples of 4."""


def _read(config: Config) -> Size:
    config.must_be(hidden_act="silu", attention_bias=False, moe_layer_freq=1)
    theta, scaling = config.rope(1e4)
    heads, nope, rope = (config.whole(f) for f in ("num_attention_heads", "qk_nope_head_dim", "qk_rope_head_dim"))
    _check_consistent(config, "num_key_value_heads", heads)
    _check_consistent(config, "head_dim", rope, nope + rope)
    _check_consistent(config, "qk_head_dim", nope + rope)
    expert_ffn = config.whole("moe_intermediate_size")
    dense, ffn = config.whole("first_k_dense_replace", minimum=0), config.whole("intermediate_size")
    return Size(
        layers=config.layers("num_hidden_layers"),
        dense_layers=dense,
        embed=config.whole("hidden_size"),
        heads=heads,
        head_dim=config.whole("v_head_dim"),
        nope_dim=nope,
        rope_dim=rope,
        q_lora=config.whole("q_lora_rank", default=0, minimum=0),
        kv_lora=config.whole("kv_lora_rank"),
        ffn=ffn if dense else 0,
        experts=config.whole("n_routed_experts", "num_local_experts"),
        expert_ffn=expert_ffn,
        shared_ffn=expert_ffn * config.whole("n_shared_experts", default=0, minimum=0),
        vocab=config.whole("vocab_size"),
        top_k=config.whole("num_experts_per_tok"),
        routing=_routing(config),
        rope_theta=theta,
        rope_scaling=scaling,
        mtp_layers=config.whole("mtp_layers", default=0, minimum=0),
        norm_eps=config.number("rms_norm_eps", default=1e-6),
        tied=config.flag("tie_word_embeddings", default=False),
    )


def _routing(config: Config) -> Routing:
    """Return the routing that a config describes. Missing fields have the defaults of the configuration classes of V2
    and V3."""
    third = config.value("model_type") != "deepseek_v2"
    scores = config.value("scoring_func", default="sigmoid" if third else "softmax")
    method = config.value("topk_method", default="noaux_tc" if third else "greedy")
    if scores not in ("softmax", "sigmoid") or method not in ("greedy", "group_limited_greedy", "noaux_tc"):
        raise ValueError(f"scoring_func = {scores!r} and topk_method = {method!r} are no way to route that is known")
    groups = config.whole("n_group", default=8 if third else 1)
    kept = config.whole("topk_group", default=4 if third else 1)
    normed = config.flag("norm_topk_prob", default=third)
    return Routing(
        scores=scores,
        normed=normed,
        scale=config.number("routed_scaling_factor", default=2.5 if third else 1.0),
        groups=1 if method == "greedy" else groups,
        groups_kept=1 if method == "greedy" else kept,
    )


def _check_consistent(config: Config, field: str, *values: int) -> None:
    """Raise ValueError if `field`, which is redundant, has none of the `values` that other fields imply."""
    given = config.whole(field, default=values[0])
    if given not in values:
        raise ValueError(f"{field} = {given}, and the other fields make it {values[-1]}")


def _blocks(size: Size) -> dict[Section, Part]:
    attention, routed = latent_attention(q_lora=size.q_lora > 0), experts(shared=size.shared_ffn > 0)
    return {DENSE: attention + feed_forward(), BLOCK: attention + routed}


def _kinds(name: str, size: Size, layers: int) -> tuple[Section, ...]:
    dense = size.dense_layers
    if layers <= dense:
        raise ValueError(f"the first {dense} layers of {name} have no experts: it needs at least {dense + 1}")
    return (DENSE,) * dense + (BLOCK,) * (layers - dense)


FAMILY = ModelFamily(
    name="deepseek",
    sizes=SIZES,
    blocks=_blocks,
    kinds=_kinds,
    mtp=lambda size: mtp(_blocks(size)[BLOCK], tied=size.tied),
    model_types=("deepseek_v2", "deepseek_v3", "kimi_k2"),
    read=_read,
)
