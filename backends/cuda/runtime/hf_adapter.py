"""Maps names of parameters in transformers' checkpoints (5.23) to those in the op graph, and back.

vLLM and SGLang take these names too (`load_weights` of their models), and fuse some of them in parameters of their own:
`stacked_params_mapping` of `models/llama.py` and `models/qwen3_moe.py` in both, `FusedMoE.make_expert_params_mapping`.
"""

from __future__ import annotations

from collections.abc import Mapping

from planc.ir.model import Model

ENDS = {"model.embed_tokens": "tok_embeddings", "model.norm": "norm", "lm_head": "output"}
"""The modules outside the blocks."""

ATTENTION = {
    "input_layernorm": "attention_norm",
    "self_attn.q_proj": "attention.wq",
    "self_attn.k_proj": "attention.wk",
    "self_attn.v_proj": "attention.wv",
    "self_attn.o_proj": "attention.wo",
    "self_attn": "attention",
    "post_attention_layernorm": "ffn_norm",
}
GATED = {
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.up_proj": "feed_forward.w3",
    "mlp.down_proj": "feed_forward.w2",
    "mlp": "feed_forward",
}

EXPERT = "{}"
"""Stands for the number of an expert: its matrices are tensors of their own there."""
ROUTED = {
    "mixtral": {
        "block_sparse_moe.gate": "moe.router",
        "block_sparse_moe.experts.{}.w1": "moe.experts.w1",
        "block_sparse_moe.experts.{}.w3": "moe.experts.w3",
        "block_sparse_moe.experts.{}.w2": "moe.experts.w2",
    },
    "qwen3_moe": {
        "mlp.gate": "moe.router",
        "mlp.experts.{}.gate_proj": "moe.experts.w1",
        "mlp.experts.{}.up_proj": "moe.experts.w3",
        "mlp.experts.{}.down_proj": "moe.experts.w2",
    },
}
"""Routers and experts, by family."""
DENSE = ("llama", "mistral", "qwen2", "qwen3")
"""Families without experts that have these names."""
FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
"""Modules of vLLM and SGLang, and those of checkpoints that they hold, one after the other."""


def checkpoint_name(name: str, family: str = "") -> str:
    """Return the name that transformers gives to the parameter `name` of a model of `family`:
    `layers.3.attention.wq.weight` is `model.layers.3.self_attn.q_proj.weight`."""
    if name.startswith("layers."):
        layers, index, rest = name.split(".", 2)
        return f"model.{layers}.{index}.{_path(rest, {**ATTENTION, **GATED, **ROUTED.get(family, {})})}"
    return _path(name, ENDS)


def engine_names(model: Model) -> dict[str, tuple[str, str]]:
    """Return, for each parameter of `model`, its name in checkpoints and that of the parameter of vLLM and SGLang which
    holds it; {} for a family without a table."""
    if model.family not in (*DENSE, *ROUTED):
        return {}
    named = {p.name: checkpoint_name(p.name, model.family) for p in model.params}
    return {name: (theirs, _engine_name(theirs)) for name, theirs in named.items()}


def _engine_name(theirs: str) -> str:
    module, _, matrix = theirs.partition(f".{EXPERT}.")
    if matrix:
        return f"{module}.w2_weight" if matrix in ("down_proj.weight", "w2.weight") else f"{module}.w13_weight"
    for fused, parts in FUSED.items():
        for part in parts:
            theirs = theirs.replace(f".{part}.", f".{fused}.")
    return theirs


def _path(path: str, table: Mapping[str, str]) -> str:
    """Replace the longest prefix of `path` that `table` lists by its name in transformers."""
    ours = {own: theirs for theirs, own in table.items()}
    found = next((o for o in sorted(ours, key=len, reverse=True) if path.startswith(f"{o}.")), "")
    return f"{ours[found]}{path[len(found) :]}" if found else path
