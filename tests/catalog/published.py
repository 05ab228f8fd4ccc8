"""Published facts of models: numbers of parameters, and the fields of `config.json` files."""

from __future__ import annotations

from typing import Any

HUB = "safetensors metadata of the model's page on the Hugging Face hub"

PARAMETERS: dict[str, tuple[float, str]] = {
    "llama2_7b": (6_738_415_616, HUB),
    "llama2_13b": (13_015_864_320, HUB),
    "llama2_70b": (68_976_648_192, HUB),
    "llama3_8b": (8_030_261_248, HUB),
    "llama3_70b": (70_553_706_496, HUB),
    "llama3_1_405b": (405_853_388_800, HUB),
    "llama3_2_1b": (1_235_814_400, HUB),
    "llama3_2_3b": (3_212_749_824, HUB),
    "mistral_7b": (7_241_732_096, HUB),
    "mixtral_8x7b": (46_702_792_704, HUB),
    "mixtral_8x22b": (140_620_634_112, HUB),
    "qwen3_0_6b": (596_049_920, "Qwen3-0.6B with its tied weight counted once"),
    "qwen3_4b": (4_022_468_096, HUB),
    "qwen3_8b": (8_190_735_360, HUB),
    "qwen3_14b": (14_768_307_200, HUB),
    "qwen3_32b": (32_762_123_264, HUB),
    "qwen3_30b_a3b": (30_532_122_624, HUB),
    "qwen3_235b_a22b": (235_093_634_560, HUB),
    "deepseek_v2_lite": (15_706_484_224, HUB),
    "deepseek_v2": (235_741_434_880, HUB),
    "deepseek_v3": (671.0e9, "DeepSeek-V3 Technical Report, abstract: the main model, without the MTP module"),
    "nemotron_h_8b": (8.1e9, "NVIDIA 2025, Nemotron-H, section 2.1"),
    "nemotron_3_nano": (31.6e9, "NVIDIA 2025, Nemotron 3 Nano, abstract: 31.6B of which 3.6B are used with embeddings"),
    "gpt_oss_20b": (20.91e9, "gpt-oss-120b & gpt-oss-20b Model Card, table 1"),
    "gpt_oss_120b": (116.83e9, "gpt-oss-120b & gpt-oss-20b Model Card, table 1"),
    "mpt_7b": (6_649_286_656, HUB),
    "mpt_30b": (29.95e9, "mosaicml/mpt-30b, model card"),
    "mpt_125m": (125_311_488, "mosaicml/llm-foundry, scripts/train/benchmarking, 2048 tokens"),
    "mpt_350m": (355_985_408, "mosaicml/llm-foundry, scripts/train/benchmarking, 2048 tokens"),
    "mpt_760m": (760_470_528, "mosaicml/llm-foundry, scripts/train/benchmarking, 2048 tokens"),
    "mpt_1b": (1_315_950_592, "mosaicml/llm-foundry, scripts/train/benchmarking, 2048 tokens"),
    "mpt_3b": (2_651_837_440, "mosaicml/llm-foundry, scripts/train/benchmarking, 2048 tokens"),
    "mpt_13b": (12_853_954_560, "mosaicml/llm-foundry, scripts/train/benchmarking, 2048 tokens"),
    "mpt_70b": (64_862_437_376, "mosaicml/llm-foundry, scripts/train/benchmarking, 2048 tokens"),
}

MEGATRON: dict[str, float] = {
    "megatron_1_7b": 1.7,
    "megatron_3_6b": 3.6,
    "megatron_7_5b": 7.5,
    "megatron_18b": 18.4,
    "megatron_39b": 39.1,
    "megatron_76b": 76.1,
    "megatron_145b": 145.6,
    "megatron_310b": 310.1,
    "megatron_530b": 529.6,
    "megatron_1t": 1008.0,
}
"""Billions of parameters: Narayanan et al. 2021, table 1."""

ACTIVE: dict[str, tuple[float, bool]] = {
    "mixtral_8x7b": (12.9e9, True),
    "mixtral_8x22b": (39e9, True),
    "qwen3_30b_a3b": (3.3e9, True),
    "qwen3_235b_a22b": (22e9, True),
    "deepseek_v2": (21e9, False),
    "deepseek_v3": (37e9, False),
    "nemotron_3_nano": (3.6e9, True),
    "nemotron_3_super": (12e9, False),
    "gpt_oss_20b": (3.61e9, False),
    "gpt_oss_120b": (5.13e9, False),
}
"""Parameters that a token uses, from the models' cards and reports, and whether they count the embedding."""

CONFIGS: dict[str, dict[str, Any]] = {
    "llama3_8b": {
        "model_type": "llama", "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 128000,
        "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
        "max_position_embeddings": 8192, "num_attention_heads": 32, "num_hidden_layers": 32,
        "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": None,
        "rope_theta": 500000.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "vocab_size": 128256,
    },
    "llama3_2_1b": {
        "model_type": "llama", "attention_bias": False, "head_dim": 64, "hidden_act": "silu",
        "hidden_size": 2048, "intermediate_size": 8192, "max_position_embeddings": 131072, "mlp_bias": False,
        "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192, "rope_type": "llama3",
        },
        "rope_theta": 500000.0, "tie_word_embeddings": True, "vocab_size": 128256,
    },
    "mistral_7b": {
        "model_type": "mistral", "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336,
        "max_position_embeddings": 32768, "num_attention_heads": 32, "num_hidden_layers": 32,
        "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 4096,
        "tie_word_embeddings": False, "vocab_size": 32000,
    },
    "mixtral_8x7b": {
        "model_type": "mixtral", "attention_dropout": 0.0, "hidden_act": "silu", "hidden_size": 4096,
        "intermediate_size": 14336, "max_position_embeddings": 32768, "num_attention_heads": 32,
        "num_experts_per_tok": 2, "num_hidden_layers": 32, "num_key_value_heads": 8, "num_local_experts": 8,
        "output_router_logits": False, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0,
        "router_aux_loss_coef": 0.02, "sliding_window": None, "tie_word_embeddings": False, "vocab_size": 32000,
    },
    "qwen3_0_6b": {
        "model_type": "qwen3", "attention_bias": False, "attention_dropout": 0.0, "head_dim": 128,
        "hidden_act": "silu", "hidden_size": 1024, "intermediate_size": 3072, "max_position_embeddings": 40960,
        "max_window_layers": 28, "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8,
        "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 1000000, "sliding_window": None,
        "tie_word_embeddings": True, "use_sliding_window": False, "vocab_size": 151936,
    },
    "qwen3_30b_a3b": {
        "model_type": "qwen3_moe", "attention_bias": False, "decoder_sparse_step": 1, "head_dim": 128,
        "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 6144, "max_position_embeddings": 40960,
        "max_window_layers": 48, "mlp_only_layers": [], "moe_intermediate_size": 768, "norm_topk_prob": True,
        "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48,
        "num_key_value_heads": 4, "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 1000000.0,
        "sliding_window": None, "tie_word_embeddings": False, "use_sliding_window": False, "vocab_size": 151936,
    },
    "deepseek_v3": {
        "model_type": "deepseek_v3", "attention_bias": False, "ep_size": 1, "first_k_dense_replace": 3,
        "hidden_act": "silu", "hidden_size": 7168, "intermediate_size": 18432, "kv_lora_rank": 512,
        "max_position_embeddings": 163840, "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 8,
        "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": True, "num_attention_heads": 128,
        "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128,
        "num_nextn_predict_layers": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
        "rms_norm_eps": 1e-06,
        "rope_scaling": {
            "beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 4096, "type": "yarn",
        },
        "rope_theta": 10000, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid",
        "tie_word_embeddings": False, "topk_group": 4, "topk_method": "noaux_tc", "v_head_dim": 128,
        "vocab_size": 129280,
    },
    "nemotron_3_nano": {
        "model_type": "nemotron_h", "attention_bias": False, "chunk_size": 128, "conv_kernel": 4, "expand": 2,
        "head_dim": 128, "hidden_size": 2688,
        "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
        "intermediate_size": 1856, "layer_norm_epsilon": 1e-05, "mamba_head_dim": 64, "mamba_hidden_act": "silu",
        "mamba_num_heads": 64, "mamba_proj_bias": False, "mlp_bias": False, "mlp_hidden_act": "relu2",
        "moe_intermediate_size": 1856, "moe_shared_expert_intermediate_size": 3712, "n_group": 1, "n_groups": 8,
        "n_routed_experts": 128, "n_shared_experts": 1, "norm_topk_prob": True, "num_attention_heads": 32,
        "num_experts_per_tok": 6, "num_hidden_layers": 52, "num_key_value_heads": 2, "routed_scaling_factor": 2.5,
        "ssm_state_size": 128, "tie_word_embeddings": False, "topk_group": 1, "use_bias": False,
        "use_conv_bias": True, "vocab_size": 131072,
    },
    "deepseek_v2_lite": {
        "model_type": "deepseek_v2", "attention_bias": False, "first_k_dense_replace": 1, "hidden_act": "silu",
        "hidden_size": 2048, "intermediate_size": 10944, "kv_lora_rank": 512, "moe_intermediate_size": 1408,
        "moe_layer_freq": 1, "n_group": 1, "n_routed_experts": 64, "n_shared_experts": 2,
        "num_attention_heads": 16, "num_experts_per_tok": 6, "num_hidden_layers": 27, "num_key_value_heads": 16,
        "q_lora_rank": None, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
        "rope_theta": 10000, "tie_word_embeddings": False, "v_head_dim": 128, "vocab_size": 102400,
    },
    "gpt_oss_20b": {
        "model_type": "gpt_oss", "attention_bias": True, "experts_per_token": 4, "head_dim": 64,
        "hidden_act": "silu", "hidden_size": 2880, "initial_context_length": 4096, "intermediate_size": 2880,
        "layer_types": ["sliding_attention", "full_attention"] * 12, "num_attention_heads": 64,
        "num_experts_per_tok": 4, "num_hidden_layers": 24, "num_key_value_heads": 8, "num_local_experts": 32,
        "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096,
            "rope_type": "yarn", "truncate": False,
        },
        "rope_theta": 150000, "sliding_window": 128, "swiglu_limit": 7.0, "tie_word_embeddings": False,
        "vocab_size": 201088,
    },
    "mpt_7b": {
        "model_type": "mpt",
        "attn_config": {
            "alibi": True, "alibi_bias_max": 8, "attn_impl": "torch", "attn_pdrop": 0,
            "attn_type": "multihead_attention", "attn_uses_sequence_id": False, "clip_qkv": None,
            "prefix_lm": False, "qk_ln": False, "softmax_scale": None,
        },
        "d_model": 4096, "emb_pdrop": 0, "expansion_ratio": 4, "learned_pos_emb": True, "logit_scale": None,
        "max_seq_len": 2048, "n_heads": 32, "n_layers": 32, "no_bias": True,
        "norm_type": "low_precision_layernorm", "vocab_size": 50432,
    },
}  # fmt: skip
"""The fields of the published configs that describe the model, and some that do not."""
