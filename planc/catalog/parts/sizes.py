"""The sizes of a model: lengths of its dims, and the numbers and flags that distinguish the models of a family."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields

from planc.diag.fast_dataclass import dataclass
from planc.ir.dims import DIMS, INNER
from planc.ir.model import Routing, Section

MAX_LAYERS = 100_000
Scaling = dict[str, float | str | bool]


@dataclass(frozen=True, kw_only=True)
class Size:
    """The sizes of one model. 0 means that the model has no such dim; for `head_dim` it means embed / heads."""

    layers: int
    embed: int
    heads: int
    kv_heads: int = 0
    head_dim: int = 0
    nope_dim: int = 0
    rope_dim: int = 0
    q_lora: int = 0
    kv_lora: int = 0
    ffn: int = 0
    experts: int = 0
    expert_ffn: int = 0
    shared_ffn: int = 0
    moe_latent: int = 0
    ssm_heads: int = 0
    ssm_head_dim: int = 0
    ssm_groups: int = 0
    ssm_state: int = 0
    ssm_chunk: int = 0
    ssm_conv: int = 0
    vocab: int
    positions: int = 0
    mtp_layers: int = 0
    """Number of MTP modules after the layers."""
    top_k: int = 0
    routing: Routing = Routing()
    dense_layers: int = 0
    """Number of first layers without experts."""
    window: int = 0
    """Sliding window (tokens) of the sliding layers; 0: full attention."""
    kinds: tuple[Section, ...] = ()
    """Each layer's kind of block, if a config gives it; () leaves it to the family."""
    biased: bool = False
    """Linear layers and norms have biases."""
    rope_theta: float = 1e4
    rope_scaling: Scaling = field(default_factory=dict)
    norm_eps: float = 1e-5
    tied: bool = False


def layers_of(size: Size, changes: Mapping[str, int] | None) -> int:
    """Return the number of layers: that in `changes`, else that of `size`. Raises ValueError if it is too large."""
    return check_layers((changes or {}).get("layers", size.layers))


def check_layers(layers: int) -> int:
    """Return `layers`. Raises ValueError if it is above `MAX_LAYERS`, because lists have an entry per layer."""
    if layers > MAX_LAYERS:
        raise ValueError(f"{layers} layers are more than the {MAX_LAYERS} that planc takes")
    return layers


def dims_of(size: Size, changes: Mapping[str, int] | None = None) -> dict[str, int]:
    """Return the lengths of the model's dims by name, with `changes` applied.

    A `head_dim` of 0 becomes embed / heads, from the unchanged sizes. `qk_head_dim` is nope_dim + rope_dim, from the
    changed sizes. Raises ValueError for too many layers, or if `changes` has another `qk_head_dim`.
    """
    named = {f.name: getattr(size, f.name) for f in fields(size) if f.name in (*DIMS, *INNER)}
    named["head_dim"] = named["head_dim"] or (size.embed // size.heads if size.heads else 0)
    sizes = {name: length for name, length in named.items() if length} | dict(changes or {})
    check_layers(sizes["layers"] + sizes.get("mtp_layers", 0))
    if sizes.get("mtp_layers"):
        sizes["mtp_pair"] = 2 * sizes["embed"]
    if size.nope_dim:
        width = sizes["nope_dim"] + sizes["rope_dim"]
        if sizes.get("qk_head_dim", width) != width:
            raise ValueError(f"qk_head_dim is nope_dim + rope_dim, {width}: change these")
        sizes["qk_head_dim"] = width
    return sizes
