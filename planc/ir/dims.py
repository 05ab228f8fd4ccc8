"""The closed list of tensor dims. An *axis* is of the mesh, a *dim* is of a tensor."""

from __future__ import annotations

from typing import Literal, get_args

Dim = Literal[
    "batch",
    "sequence",
    "embed",
    "heads",
    "kv_heads",
    "head_dim",
    "ffn",
    "vocab",
    "layers",
    "experts",
    "expert_ffn",
    "q_lora",
    "kv_lora",
]

DIMS: tuple[str, ...] = get_args(Dim)

CARRIED: dict[str, tuple[str, ...]] = {"heads": ("heads", "kv_heads")}
"""`shard heads` divides the key-value heads too, unless `replicate kv_heads` says otherwise."""
