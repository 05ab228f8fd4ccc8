"""Which model, with which sizes: a catalog name, a few sizes changed, or a config file."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from planc.catalog import build_model, config_types, model_names
from planc.ir.model import Model
from tests.catalog.published import CONFIGS
from tests.random_plans.pieces import Dice

TRAINED = (
    *("llama_micro", "llama_micro_tied", "mistral_micro", "qwen3_micro"),
    *("mixtral_micro", "qwen3_moe_micro", "deepseek_micro"),
)
"""Models with a bundled module on both stacks."""
ALONE = ("gpt", "mpt", "gemma3", "gpt_oss", "llama4", "qwen2")
"""Families without a module on one stack or both."""
TARGETED = tuple(n for n, family in model_names().items() if family not in ALONE)


UNEVEN = {"vocab": (137, 257), "ffn": (182, 187), "expert_ffn": (90, 91), "shared_ffn": (90, 91)}
"""Sizes of small models that few numbers of ranks divide."""


def draw(dice: Dice, *, small: bool) -> tuple[Model, dict[str, int]]:
    """A model, and the sizes in which it differs from its name's."""
    name = dice.choice(TRAINED if small else TARGETED if dice.chance(0.8) else tuple(model_names()))
    published = build_model(name)
    for _ in range(20):
        changes = _changes(dice, published, small=small)
        try:
            return build_model(name, changes), changes
        except ValueError:
            continue
    return published, {}


def _changes(dice: Dice, model: Model, *, small: bool) -> dict[str, int]:
    """Other sizes: those of a small model stay small, and now and then do not divide nicely."""
    sizes = model.sizes
    if not small and dice.chance(0.6):
        return {}
    legal: dict[str, tuple[int, ...]] = {
        "vocab": (64, 120, 128, 137, 256) if small else (32000, 50257, 50304, 128256, 65536),
        "ffn": (96, 160, 182, 192) if small else (1024, 2816, 4096, 8192),
        "expert_ffn": (48, 64, 90) if small else (512, 1024, 1536),
        "shared_ffn": (64, 90) if small else (1024, 2048),
        "experts": (4, 8, 16) if small else (8, 16, 64, 128),
        "heads": (4, 8, 12, 16) if small else (8, 16, 24, 32, 40, 64),
        "kv_heads": (1, 2, 4, 8),
        "embed": (32, 48, 64) if small else (1024, 2048, 4096),
        "head_dim": (8, 16) if small else (64, 128),
        "positions": (128, 4096),
        "q_lora": (16, 24) if small else (768, 1536),
        "kv_lora": (8, 16) if small else (256, 512),
        "nope_dim": (8,) if small else (64, 128),
        "rope_dim": (4, 8) if small else (32, 64),
    }
    found = {dim: dice.choice(legal[dim]) for dim in sizes if dim in legal and dice.chance(0.3)}
    if small and dice.chance(0.5):  # parts of unequal sizes
        found |= {dim: dice.choice(uneven) for dim, uneven in UNEVEN.items() if dim in sizes and dice.chance(0.5)}
    heads = found.get("heads", sizes.get("heads", 1))
    if "kv_heads" in sizes and heads % found.get("kv_heads", sizes["kv_heads"]):
        found["kv_heads"] = dice.choice([d for d in (1, 2, 4, 8) if heads % d == 0])
    if small and model.family == "qwen3_moe":
        found.pop("head_dim", None)
    return found


def with_layers(model: Model, changes: dict[str, int], layers: int) -> tuple[Model, dict[str, int]]:
    """The same with so many layers, if it may have them."""
    wanted = {**changes, "layers": layers}
    try:
        return build_model(model.name, wanted), wanted
    except ValueError:
        return model, changes


def sentence(dice: Dice, model: Model, changes: dict[str, int]) -> str:
    args = ", ".join(f"{dim} = {_number(dice, n)}" for dim, n in changes.items())
    return f"model {model.name}({args})" if args else f"model {model.name}"


def _number(dice: Dice, n: int) -> str:
    """A number as it is, or as arithmetic."""
    if n % 2 or dice.chance(0.85):
        return str(n)
    return dice.choice(
        (f"2 * {n // 2}", f"{n - 1} + 1", f"{n + 2} - 2", f"{2 * n} / 2", f"({n})", f"2 * ({n // 2 - 1} + 1)")
    )


def config(dice: Dice, layers: int) -> tuple[Model, dict[str, Any]] | None:
    """A model of a published config, with so many layers where that field has its usual name; None where it is none."""
    name = dice.choice(sorted(CONFIGS))
    fields = dict(CONFIGS[name])
    key = next((k for k in ("num_hidden_layers", "n_layers") if k in fields), "")
    if key and "layer_types" not in fields and dice.chance(0.7):
        fields[key] = layers
    try:
        model, _ = config_types()[fields["model_type"]].read_config("config", fields)
    except ValueError:
        return None
    return replace(model), fields


def config_text(fields: dict[str, Any]) -> str:
    return json.dumps(fields, indent=1) + "\n"
