"""Attention layers: multi-head and grouped-query, with the variants of the model families."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from planc.catalog.parts.part import Part
from planc.catalog.parts.steps import RMS, NormParams, Shape, hidden, matmul, norm, to_stream
from planc.diag.fast_dataclass import dataclass
from planc.ir.model import Op, Param, Tensor

QUERIES = ("batch", "sequence", "heads", "head_dim")
KEYS = ("batch", "sequence", "kv_heads", "head_dim")
MODULE = "layers.*.attention"
IN = "attention.in"
"""The normed input of attention."""
INPUTS = ("wq", "wk", "wv")
"""The projections of queries, keys and values."""


@dataclass(frozen=True, kw_only=True)
class HeadNorm:
    """A norm of queries or keys: over each head, with one weight for all heads (`head`) or one for each (`each`), or
    over all heads together (`all`)."""

    over: Literal["head", "each", "all"] = "head"
    params: NormParams = RMS


def attention(
    *,
    window: int = 0,
    rotary: bool = True,
    q_norm: HeadNorm | None = None,
    k_norm: HeadNorm | None = None,
    biased: Collection[str] = (),
    before: NormParams | None = RMS,
    after: NormParams | None = None,
    sinks: bool = False,
    grouped: bool = True,
    target: str = "hidden.mid",
) -> Part:
    """Return an attention layer: norm, projections, scores and softmax, output projection, residual add. It reads the
    tensor `hidden` and writes the tensor `target`.

    `window` is the sliding window in tokens (0: full attention); `q_norm` and `k_norm` are norms of queries and keys
    (Qwen3); `sinks` adds a learned score per head to the softmax (gpt-oss); `biased` are the projections with a bias,
    of `wq`, `wk`, `wv` and `wo`; `before` and `after` are the norms of the layer's input and output, None for none. If
    `grouped` is False, there are as many key heads as query heads.
    """
    query = ("heads", "head_dim")
    key = ("kv_heads", "head_dim") if grouped else query
    kv = KEYS if grouped else QUERIES
    part, source = Part(), "hidden"
    if before is not None:
        part, source = norm("attention.norm", "layers.*.attention_norm", source, hidden("attention.in"), before), IN
    for letter, width, dims in (("q", query, QUERIES), ("k", key, kv), ("v", key, kv)):
        made, module = _tensor(f"attention.{letter}", dims), f"{MODULE}.w{letter}"
        shape: Shape = (width, ("embed",))
        part += matmul(made.name, "projection", module, shape, source, made, biased=f"w{letter}" in biased)
    ends = {"q": "attention.q", "k": "attention.k"}
    for letter, normed, dims in (("q", q_norm, QUERIES), ("k", k_norm, kv)):
        if normed is not None:
            target_of = _tensor(f"attention.{letter}_normed", dims)
            part, ends[letter] = part + _head_norm(letter, ends[letter], target_of, normed), target_of.name
    for letter, dims in (("q", QUERIES), ("k", kv)):
        if rotary:
            target_of = _tensor(f"attention.{letter}_rotated", dims)
            part, ends[letter] = part + rope(f"attention.rope_{letter}", ends[letter], target_of), target_of.name
    part += core(ends["q"], ends["k"], "attention.v", window=window, sinks=sinks)
    return part + projection_out(biased="wo" in biased, after=after, target=target)


def rope(name: str, source: str, target: Tensor, *, module: str = MODULE) -> Part:
    """Return the op that applies rotary position embeddings (RoPE) to the tensor `source` and writes `target`.

    It mixes pairs of elements of a head, so head_dim cannot be sharded. It is linear, so its backward needs no saved
    tensor.
    """
    op = Op(
        name=name,
        kind="rope",
        region=target.region,
        module=module,
        inputs=(source,),
        output=target.name,
        whole=target.dims[-1:],
    )
    return Part(tensors=(target,), ops=(op,))


def core(
    q: str, k: str, v: str, *, window: int = 0, sinks: bool = False, widths: tuple[str, ...] = ("head_dim",)
) -> Part:
    """Return causal attention of the tensors `q`, `k` and `v`. Queries may be sharded over the sequence, keys and
    values not.

    `widths` are the dims of a head, which cannot be sharded. Inputs and output are saved for backward
    (FlashAttention-2, Dao 2023).
    """
    score = Param(name=f"{MODULE}.head_sinks.weight", shape_dims=(("heads",),), section="", decay=False)
    op = Op(
        name="attention.core",
        kind="attention",
        region="attention",
        module=f"{MODULE}.core",
        inputs=(q, k, v),
        params=(score.name,) if sinks else (),
        output="attention.mixed",
        whole=widths,
        whole_of={k: ("sequence",), v: ("sequence",)},
        saves=(q, k, v, "attention.mixed"),
        window=window,
    )
    return Part(params=(score,) if sinks else (), tensors=(_tensor("attention.mixed", QUERIES),), ops=(op,))


def projection_out(*, biased: bool = False, after: NormParams | None = None, target: str = "hidden.mid") -> Part:
    """Return the output projection of attention, with a bias if `biased`, its norm `after` if it has one, and the
    residual add to `target`."""
    wo = f"{MODULE}.wo"
    shape: Shape = (("embed",), ("heads", "head_dim"))
    out = matmul("attention.out", "projection", wo, shape, "attention.mixed", hidden("attention.out"))
    return out + to_stream("attention", stream="hidden", target=target, after=after, bias_of=wo if biased else "")


def _tensor(name: str, dims: tuple[str, ...]) -> Tensor:
    return Tensor(name=name, dims=dims, region="attention")


def _head_norm(letter: str, source: str, target: Tensor, normed: HeadNorm) -> Part:
    heads = target.dims[2]
    shape: Shape = {
        "head": (("head_dim",),),
        "each": ((heads,), ("head_dim",)),
        "all": ((heads, "head_dim"),),
    }[normed.over]
    over = (heads, "head_dim") if normed.over == "all" else ("head_dim",)
    module = f"{MODULE}.{letter}_norm"
    return norm(f"attention.{letter}_norm", module, source, target, normed.params, over=over, shape_dims=shape)
