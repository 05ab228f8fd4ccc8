"""Attention over heads: multi-head and grouped-query, with the variants of the families."""

from __future__ import annotations

from planc.catalog.parts.part import Part
from planc.catalog.parts.steps import add, hidden, matmul, norm
from planc.ir.model import Op, Param, Tensor

QUERIES = ("batch", "sequence", "heads", "head_dim")
KEYS = ("batch", "sequence", "kv_heads", "head_dim")
MODULE = "layers.*.attention"


def attention(
    *,
    window: int = 0,
    rotary: bool = True,
    qk_norm: bool = False,
    biased: bool = False,
    biased_inputs: bool = False,
    biased_norm: bool = False,
    sinks: bool = False,
    grouped: bool = True,
    target: str = "hidden.mid",
) -> Part:
    """Return the part from `hidden` to `target`: norm, projections, the core, the output projection and the residual
    add.

    `window` is the sliding window in tokens (0: full attention); `qk_norm` adds a norm to each head's queries and keys
    (Qwen3); `sinks` is a learned score per head in the softmax (gpt-oss); `biased` adds biases to the projections,
    `biased_inputs` only to those of queries, keys and values (Qwen2), `biased_norm` to the norm; without `grouped`
    there are as many key heads as query heads, with the same dim.
    """
    query = ("heads", "head_dim")
    key = ("kv_heads", "head_dim") if grouped else query
    kv = KEYS if grouped else QUERIES
    part = norm("attention.norm", "layers.*.attention_norm", "hidden", hidden("attention.in"), biased=biased_norm)
    inputs = biased or biased_inputs
    part += _projection("q", query, QUERIES, inputs) + _projection("k", key, kv, inputs)
    part += _projection("v", key, kv, inputs)
    q, k = "attention.q", "attention.k"
    if qk_norm:
        part += _head_norm("q", q, QUERIES) + _head_norm("k", k, kv)
        q, k = "attention.q_normed", "attention.k_normed"
    if rotary:
        part += rope("attention.rope_q", q, _tensor("attention.q_rotated", QUERIES))
        part += rope("attention.rope_k", k, _tensor("attention.k_rotated", kv))
        q, k = "attention.q_rotated", "attention.k_rotated"
    return part + core(q, k, "attention.v", window=window, sinks=sinks) + projection_out(biased=biased, target=target)


def rope(name: str, source: str, target: Tensor, *, module: str = MODULE) -> Part:
    """Return the part that applies rotary positions from tensor `source` to `target`, as module `module`. A rotation
    mixes pairs of elements of a head, so head_dim cannot be sharded.

    A rotation is linear: its backward needs no tensor.
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
    """Return causal attention. Its rows may be sharded over the sequence; each needs all keys and values.

    `widths` are the dims of a head, which the scores need whole. The output is saved in addition to the inputs, for the
    backward of flash attention (Dao 2023, FlashAttention-2).
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


def projection_out(*, biased: bool = False, target: str = "hidden.mid") -> Part:
    """Return the output projection to the residual stream, with the add to `target`; `biased` adds a bias."""
    wo, inputs = f"{MODULE}.wo", ("hidden", "attention.out")
    out = matmul(
        "attention.out", "projection", wo, (("embed",), ("heads", "head_dim")), "attention.mixed", hidden(inputs[1])
    )
    return out + add("attention.add", "layers.*", inputs, hidden(target), bias_of=wo if biased else "")


def _tensor(name: str, dims: tuple[str, ...]) -> Tensor:
    return Tensor(name=name, dims=dims, region="attention")


def _projection(letter: str, width: tuple[str, ...], dims: tuple[str, ...], biased: bool) -> Part:
    return matmul(
        f"attention.{letter}",
        "projection",
        f"{MODULE}.w{letter}",
        (width, ("embed",)),
        "attention.in",
        _tensor(f"attention.{letter}", dims),
        biased=biased,
    )


def _head_norm(letter: str, source: str, dims: tuple[str, ...]) -> Part:
    target = _tensor(f"attention.{letter}_normed", dims)
    return norm(f"attention.{letter}_norm", f"{MODULE}.{letter}_norm", source, target, over="head_dim")
