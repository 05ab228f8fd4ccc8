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
    "shared_ffn",
    "q_lora",
    "kv_lora",
]

DIMS: tuple[str, ...] = get_args(Dim)

CARRIED: dict[str, tuple[str, ...]] = {"heads": ("heads", "kv_heads"), "ffn": ("ffn", "shared_ffn")}
"""`shard heads` divides the key-value heads too, unless `replicate kv_heads` says otherwise; `shard ffn`
the shared experts'."""

INNER = ("qk_head_dim", "nope_dim", "rope_dim", "positions", "slots", "lora_rank")
"""Dims that models have and no sentence divides. `qk_head_dim` is a head's width for queries and keys
where it differs from the values' `head_dim` (MLA), `rope_dim` its rotated part and `nope_dim` the rest,
`positions` the learned positions, `slots` the places for tokens at one expert, `lora_rank` the numbers between the two
matrices of a low-rank update."""
