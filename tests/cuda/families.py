"""Small configs of transformers' decoder families, by `model_type`: what they share, and what some call otherwise."""

from __future__ import annotations

from typing import Any

SHARED: dict[str, Any] = {
    "hidden_size": 64,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "num_hidden_layers": 4,
    "intermediate_size": 184,
    "vocab_size": 136,
    "head_dim": 16,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "max_position_embeddings": 64,
    "sliding_window": 16,
    "attention_dropout": 0.0,
    "hidden_dropout": 0.0,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
    "resid_dropout": 0.0,
    "embedding_dropout": 0.0,
    "residual_dropout": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "hidden_dropout_prob": 0.0,
    "embed_dropout": 0.0,
    "dropout": 0.0,
    "activation_dropout": 0.0,
    "layerdrop": 0.0,
    "moe_intermediate_size": 52,
    "shared_intermediate_size": 40,
    "num_experts": 8,
    "num_local_experts": 8,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "q_lora_rank": 24,
    "kv_lora_rank": 20,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 16,
    "shared_expert_intermediate_size": 40,
}
"""Fields that a family's config has are set, under the name it gives them."""
OLD: dict[str, Any] = {"n_layer": 4, "n_head": 8, "n_embd": 64, "n_inner": 184}
OTHERWISE: dict[str, dict[str, Any]] = {
    "gpt2": OLD,
    "gptj": {**OLD, "rotary_dim": 4},
    "codegen": {**OLD, "rotary_dim": 4},
    "gpt_bigcode": OLD,
    "bloom": {"n_layer": 4, "n_head": 8},
    "mpt": {"d_model": 64, "n_heads": 8, "n_layers": 4},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "num_layers": 4, "num_heads": 8},
    "xglm": {"d_model": 64, "num_layers": 4, "attention_heads": 8, "ffn_dim": 184},
    "deepseek_v2": {"num_key_value_heads": 8},
    "deepseek_v3": {"num_key_value_heads": 8},
    "glm4_moe_lite": {"num_key_value_heads": 8},
    "minicpm3": {"num_key_value_heads": 8},
    "dots1": {"n_shared_experts": 1},
    "helium": {"head_dim": 8},
    "falcon": {"new_decoder_architecture": True, "num_kv_heads": 4},
    "opt": {"ffn_dim": 184, "word_embed_proj_dim": 64},
}
WITHOUT: dict[str, tuple[str, ...]] = {
    "deepseek_v2": ("head_dim",),
    "deepseek_v3": ("head_dim",),
    "falcon": ("num_kv_heads",),
}
"""Fields that follow from others in these families."""

FAMILIES: tuple[str, ...] = (
    *("arcee", "biogpt", "bloom", "codegen", "cohere", "cohere2", "cwm", "deepseek_v2", "deepseek_v3", "ernie4_5"),
    *("exaone4", "falcon", "gemma", "gemma2", "gemma3_text", "glm", "glm4", "glm4_moe", "glm4_moe_lite", "gpt2"),
    *("gpt_bigcode", "gpt_neo", "gpt_neox", "gpt_oss", "gptj", "granite", "granite_swa", "granitemoe"),
    *("granitemoeshared", "helium", "hunyuan_v1_dense", "hunyuan_v1_moe", "jais2", "lfm2", "llama", "llama4_text"),
    *("minicpm3", "minimax_m2", "ministral", "mistral"),
    *("mixtral", "mpt", "nanochat", "nemotron", "olmo", "olmo2", "olmo3", "olmoe", "opt", "persimmon", "phi", "phi3"),
    *("phimoe", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "seed_oss", "smollm3", "solar_open", "stablelm"),
    *("starcoder2", "vaultgemma", "xglm"),
)
"""Every family whose class has an op graph."""


def config_of(family: str, **changes: Any) -> Any:
    """A small config of `family`, with `changes`."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind = CONFIG_MAPPING[family]
    try:
        usual = kind()
    except (TypeError, ValueError):
        usual = kind(**{k: v for k, v in SHARED.items() if k not in WITHOUT.get(family, ())})
    fields, renamed = usual.to_dict(), getattr(kind, "attribute_map", {})
    given = {renamed.get(k, k): v for k, v in SHARED.items()}
    known = {k: v for k, v in given.items() if k in fields and k not in WITHOUT.get(family, ())}
    return kind(**{**known, **OTHERWISE.get(family, {}), **changes})


def model_on(device: str, config: Any) -> Any:
    """The causal model of `config` with random weights; on the meta device without any."""
    import torch
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    with torch.device(device):
        kind: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
        return kind(config)
