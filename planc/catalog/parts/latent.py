"""Multi-head latent attention (MLA): queries, keys and values are projected from low-rank latents.

DeepSeek-AI 2024, "DeepSeek-V2", section 2.1. A head's queries and keys have `qk_head_dim` = `nope_dim` + `rope_dim`
elements, its values `head_dim`; the `rope_dim` part of the keys is shared by all heads. The published weights fuse the
two down projections (latent and rotary key) and the two up projections (keys and values); here they are separate, with
the same number of parameters.
"""

from __future__ import annotations

from planc.catalog.parts.attention import MODULE, core, projection_out, rope
from planc.catalog.parts.part import HIDDEN, Part
from planc.catalog.parts.steps import hidden, matmul, norm
from planc.ir.model import Op, Tensor

TOKENS = HIDDEN[:2]
QUERY = ("heads", "qk_head_dim")
VALUE = ("heads", "head_dim")
KEYS = f"{MODULE}.keys"
"""The module that rotates the shared key and concatenates it to each head's own."""


def latent_attention(*, q_lora: bool = True) -> Part:
    """Return multi-head latent attention with norm and residual add: from the tensor `hidden` to `hidden.mid`.

    Without `q_lora` the queries have no low-rank latent. The down projections, their norms and the shared key's
    rotation have the layout of the residual stream: if the sequence is sharded, their outputs are all-gathered.
    """
    part = norm("attention.norm", "layers.*.attention_norm", "hidden", hidden("attention.in"))
    part += _queries() if q_lora else _projection("attention.q", "wq", QUERY, "embed", "attention.in", "attention.q")
    part += _down_projection("kv", "kv_lora")
    part += matmul(
        "mla.down_proj.k_rope",
        "residual",
        f"{MODULE}.wk_rope",
        (("rope_dim",), ("embed",)),
        "attention.in",
        _latent("mla.k_rope", "rope_dim"),
    )
    part += _projection("mla.up_proj.k", "wk_b", ("heads", "nope_dim"), "kv_lora", "mla.kv_normed", "mla.k_nope")
    part += _projection("mla.up_proj.v", "wv_b", VALUE, "kv_lora", "mla.kv_normed", "attention.v")
    part += rope("attention.rope_q", "attention.q", _tensor("attention.q_rotated", QUERY))
    part += rope("attention.rope_k", "mla.k_rope", _latent("mla.k_rotated", "rope_dim"), module=KEYS)
    part += _join()
    widths = ("head_dim", "qk_head_dim")
    return part + core("attention.q_rotated", "attention.k", "attention.v", widths=widths) + projection_out()


def _tensor(name: str, width: tuple[str, ...]) -> Tensor:
    return Tensor(name=name, dims=(*TOKENS, *width), region="attention")


def _latent(name: str, width: str) -> Tensor:
    return Tensor(name=name, dims=(*TOKENS, width), region="residual")


def _queries() -> Part:
    up = _projection("mla.up_proj.q", "wq_b", QUERY, "q_lora", "mla.q_normed", "attention.q")
    return _down_projection("q", "q_lora") + up


def _down_projection(letter: str, latent: str) -> Part:
    made, normed = (_latent(f"mla.{letter}_{state}", latent) for state in ("latent", "normed"))
    module = f"{MODULE}.w{letter}_a"
    return matmul(f"mla.down_proj.{letter}", "residual", module, ((latent,), ("embed",)), "attention.in", made) + norm(
        f"mla.{letter}_norm", f"{MODULE}.{letter}_norm", made.name, normed, over=(latent,)
    )


def _projection(name: str, module: str, width: tuple[str, ...], wide: str, source: str, target: str) -> Part:
    return matmul(name, "projection", f"{MODULE}.{module}", (width, (wide,)), source, _tensor(target, width))


def _join() -> Part:
    """Return the op that appends the rotary key, which all heads share, to each head's key. It saves no tensor."""
    op = Op(
        name="mla.join_k",
        kind="elementwise",
        region="attention",
        module=KEYS,
        inputs=("mla.k_nope", "mla.k_rotated"),
        output="attention.k",
        whole_of={"mla.k_rotated": ("heads",)},
    )
    return Part(tensors=(_tensor("attention.k", QUERY),), ops=(op,))
