"""Names of tensor dims. In planc, an *axis* is a mesh axis, and a *dim* is a tensor dim."""

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
"""Dims that a sentence shards along with the one it names: `shard heads` also shards the key-value heads, unless
`replicate kv_heads` says otherwise, and the heads and groups of state-space layers; `shard ffn` also the shared
experts'."""
TOGETHER: tuple[frozenset[str], ...] = (frozenset({"heads", "kv_heads"}), frozenset({"ssm_heads", "ssm_groups"}))
"""Dims of one op that an axis shards together: query heads stay with their keys, state-space heads with their group."""

DERIVED = ("qk_head_dim", "mtp_pair")
"""Dims whose length follows from other dims."""
INNER = (
    *("qk_head_dim", "nope_dim", "rope_dim", "positions", "slots", "lora_rank"),
    *("ssm_head_dim", "ssm_state", "ssm_chunk", "ssm_conv", "moe_latent", "mtp_layers", "mtp_pair"),
)
"""Dims that models have and no sentence shards. `qk_head_dim` is a head's width for queries and keys if it differs from
the values' `head_dim` (MLA), `rope_dim` its rotated part and `nope_dim` the rest, `positions` the learned positions,
`slots` the token slots of one expert, `lora_rank` the rank of a LoRA update, `ssm_head_dim` the width of a state-space
head, `ssm_state` its state size, `ssm_chunk` the tokens of a chunk of its scan, `ssm_conv` the width of its convolution
in tokens, `moe_latent` the width of tokens sent to experts that work on a projection, `mtp_layers` the
multi-token-prediction (MTP) modules and `mtp_pair` the input width of each one's projection: a hidden state
concatenated with an embedding."""
