"""Attention layers: multi-head and grouped-query, with the variants of the model families."""

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
    """Return an attention layer: norm, projections, scores and softmax, output projection, residual add. It reads the
    tensor `hidden` and writes the tensor `target`.

    `window` is the sliding window in tokens (0: full attention); `qk_norm` adds a norm to each head's queries and keys
    (Qwen3); `sinks` adds a learned score per head to the softmax (gpt-oss); `biased` adds biases to the projections,
    `biased_inputs` only to those of queries, keys and values (Qwen2), `biased_norm` to the norm. If `grouped` is False,
    there are as many key heads as query heads.
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


def projection_out(*, biased: bool = False, target: str = "hidden.mid") -> Part:
    """Return the output projection of attention, with a bias if `biased`, and the residual add to `target`."""
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
