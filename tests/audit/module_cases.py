"""Classes of transformers that are audited on 64 devices: families by layout, at widths of models in use."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from planc.backends.cuda.runtime.traced.read import model_of
from planc.driver import load
from planc.ir.plan import Plan
from tests.cuda.families import WITHOUT, config_of

WIDTHS: dict[str, Any] = {
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "intermediate_size": 2816,
    "vocab_size": 32000,
    "max_position_embeddings": 8192,
    "sliding_window": 1024,
    "moe_intermediate_size": 512,
    "shared_intermediate_size": 512,
    "rotary_dim": 32,
    "n_inner": 2816,
    "ffn_dim": 2816,
    "word_embed_proj_dim": 1024,
    "q_lora_rank": 384,
    "kv_lora_rank": 256,
    "qk_rope_head_dim": 32,
    "qk_nope_head_dim": 64,
    "v_head_dim": 64,
}
"""Fields that a family's config has are set, under the name it gives them."""
OTHERWISE: dict[str, dict[str, Any]] = {
    "falcon": {"num_kv_heads": 8},
    **{name: {"num_key_value_heads": 16} for name in ("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "minicpm3")},
    "helium": {"head_dim": 64},
    "mpt": {"max_seq_len": 8192},
}
TOKENS = 4096
FSDP = "use fsdp over fsdp"
LAYOUTS: dict[str, tuple[str, ...]] = {
    "sp": ("mesh fsdp 8 > tp 8", FSDP, "use tp over tp", "use sp over tp"),
    "tp": ("mesh fsdp 8 > tp 8", FSDP, "use tp over tp"),
    "heads": ("mesh fsdp 8 > tp 8", FSDP, "shard heads, vocab over tp"),
    "ep": (
        "mesh fsdp 8 > ep 8",
        "shard batch over fsdp, ep",
        "store params, grads, optimizer over fsdp, ep",
        "use ep over ep",
    ),
    "keys": ("mesh fsdp 8 > tp 8", FSDP, "use tp over tp", "replicate kv_heads over tp"),
    "parts": ("mesh fsdp 16 > tp 4", FSDP, "use tp over tp"),
    "fsdp": ("mesh fsdp 64", FSDP),
}
FAMILIES: dict[str, tuple[str, ...]] = {
    "sp": (
        *("arcee", "cohere", "cohere2", "cwm", "deepseek_v2", "deepseek_v3", "ernie4_5", "exaone4", "falcon"),
        *("gemma", "gemma2", "gemma3_text"),
        *("glm", "glm4", "granite", "granite_swa", "helium", "hunyuan_v1_dense", "llama", "ministral", "mistral"),
        *(
            "minicpm3",
            "nanochat",
            "nemotron",
            "olmo",
            "olmo2",
            "olmo3",
            "phi3",
            "qwen2",
            "qwen3",
            "seed_oss",
            "smollm3",
        ),
        *("stablelm", "vaultgemma"),
    ),
    "tp": (
        *("biogpt", "bloom", "gpt2", "gpt_neo", "gpt_neox", "gptj", "jais2", "mpt", "opt", "persimmon", "phi"),
        *("starcoder2", "xglm"),
    ),
    "keys": ("gpt_bigcode", "qwen2"),
    "parts": ("codegen",),
    "heads": ("gpt_oss", "granitemoe", "minimax_m2", "mixtral", "olmoe", "qwen3_moe"),
    "ep": (
        *(
            "deepseek_v2",
            "deepseek_v3",
            "glm4_moe",
            "gpt_oss",
            "granitemoe",
            "granitemoeshared",
            "hunyuan_v1_moe",
            "minimax_m2",
            "mixtral",
            "olmoe",
            "phimoe",
        ),
        *("qwen2_moe", "qwen3_moe", "solar_open"),
    ),
    "fsdp": ("bloom",),
}
CASES = tuple(f"{family}:{layout}" for layout, families in FAMILIES.items() for family in families)
QUICK = ("gemma:sp", "gpt2:tp", "qwen2_moe:ep")
"""A table that scales what it finds, with a head that is tied to it; biases beside divided weights; experts."""


def config(family: str) -> dict[str, Any]:
    """The fields of a config of `family` at these widths."""
    usual = config_of(family)
    renamed = getattr(type(usual), "attribute_map", {})
    given = {renamed.get(k, k): v for k, v in WIDTHS.items() if k not in WITHOUT.get(family, ())}
    fields = usual.to_dict()
    known = {k: v for k, v in given.items() if fields.get(k) is not None}
    made: dict[str, Any] = config_of(family, **{**known, **OTHERWISE.get(family, {})}).to_dict()
    return made


def plan_of(case: str) -> tuple[Plan, dict[str, Any]]:
    """The plan of `FAMILY:LAYOUT` on H100 nodes, a sequence for each data rank, and the config of its model."""
    family, layout = case.split(":")
    fields = config(family)
    sequences = {"ep": 64, "fsdp": 64, "parts": 16}.get(layout, 8)
    lines = [
        f"plan {family}",
        f'model from code "{family}"',
        f"batch {sequences} x {TOKENS} tokens microbatch 1",
        "cluster 8 x h100_node",
        "compute bf16 reduce fp32",
        "optimizer adamw",
        *LAYOUTS[layout],
    ]
    with tempfile.TemporaryDirectory() as folder:
        model_of(fields, None, family).write(Path(folder) / f"{family}.model.json")
        path = Path(folder) / f"{family}.plan"
        path.write_text("\n".join(lines) + "\n")
        return load(path, target="cuda"), fields
