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
    "ssm_heads",
    "ssm_groups",
]

DIMS: tuple[str, ...] = get_args(Dim)

CARRIED: dict[str, tuple[str, ...]] = {
    "heads": ("heads", "kv_heads", "ssm_heads", "ssm_groups"),
    "ffn": ("ffn", "shared_ffn"),
}
"""`shard heads` divides the key-value heads too, unless `replicate kv_heads` says otherwise, and the heads and groups
of state-space layers; `shard ffn` the shared experts'."""
TOGETHER: tuple[frozenset[str], ...] = (frozenset({"heads", "kv_heads"}), frozenset({"ssm_heads", "ssm_groups"}))
"""Dims of one op that an axis divides together: heads lie beside the keys or the group that they share."""

DERIVED = ("qk_head_dim", "mtp_pair")
"""Dims whose length follows from others'."""
INNER = (
    *("qk_head_dim", "nope_dim", "rope_dim", "positions", "slots", "lora_rank"),
    *("ssm_head_dim", "ssm_state", "ssm_chunk", "ssm_conv", "moe_latent", "mtp_layers", "mtp_pair"),
)
"""Dims that models have and no sentence divides. `qk_head_dim` is a head's width for queries and keys
where it differs from the values' `head_dim` (MLA), `rope_dim` its rotated part and `nope_dim` the rest,
`positions` the learned positions, `slots` the places for tokens at one expert, `lora_rank` the numbers between the two
matrices of a low-rank update, `ssm_head_dim` the width of a state-space head, `ssm_state` the numbers that it keeps for
each, `ssm_chunk` the tokens of a chunk of its scan, `ssm_conv` the tokens that its convolution sees, `moe_latent` the
width of what is sent to experts that work on a projection, `mtp_layers` the modules for further tokens and `mtp_pair`
the width of what each of them projects: a hidden state beside an embedding."""
