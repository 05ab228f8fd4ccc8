"""Builds the op graph of a traced model from the ops of planc's model catalog."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Literal

from planc.backends.cuda.runtime.traced.names import CHANNELS, MIXER, name_in
from planc.backends.cuda.runtime.traced.roles import (
    AttentionLayers,
    BlockLayers,
    Code,
    DecoderRoles,
    ExpertLayers,
    FeedForwardLayers,
    Norm,
    Shape,
    UnknownError,
    expert_width,
    heads_of,
)
from planc.catalog.parts.attention import HeadNorm, attention
from planc.catalog.parts.ends import embedding, head
from planc.catalog.parts.experts import experts
from planc.catalog.parts.latent import latent_attention
from planc.catalog.parts.mlp import feed_forward
from planc.catalog.parts.part import BLOCK, Part, assemble
from planc.catalog.parts.sizes import Size
from planc.catalog.parts.steps import LAYER, NormParams, add, code, hidden, norm, to_stream
from planc.ir.model import Model, Param, Tensor

FAMILY = "traced"
UNNAMED = "own_"
"""Prefix of dims that stand for the length of a parameter dim without a name."""


def model_of_roles(name: str, roles: DecoderRoles) -> Model:
    """Returns the op graph of a model called `name` with these parts (`roles`). Raises UnknownError."""
    if roles.rest:
        shown = "; ".join(f"{line}: {name}" if line else name for name, line in roles.rest)
        raise UnknownError(f"parameters outside the blocks with no known role: {shown}")
    kinds = _kinds(roles.blocks)
    size = _size(roles)
    parts = {kind: _block(block) for kind, block in kinds.items()}
    order = tuple(next(kind for kind, block in kinds.items() if block == b) for b in roles.blocks)
    ends = _first(roles), _last(roles)
    try:
        model = assemble(
            name=name,
            family=FAMILY,
            size=size,
            changes=None,
            first=ends[0],
            blocks={kind: parts[kind] for kind in _in_order(parts)},
            last=ends[1],
            kinds=order,
        )
    except AssertionError as error:
        raise UnknownError(f"{error} has another shape in another kind of block") from None
    dims = {d for part in (*parts.values(), *ends) for p in part.params for d in p.dims if d not in model.sizes}
    return replace(model, sizes={**model.sizes, **{dim: int(dim.removeprefix(UNNAMED)) for dim in sorted(dims)}})


def _in_order(parts: Mapping[str, Part]) -> list[str]:
    """Returns the names of the kinds of block, the default name (BLOCK) last, as in planc's own models."""
    return sorted(parts, key=lambda kind: kind == BLOCK)


def _kinds(blocks: tuple[BlockLayers, ...]) -> dict[str, BlockLayers]:
    """Returns the distinct kinds of block, each under a name that says how it differs (dense, sliding)."""
    different = list(dict.fromkeys(blocks))
    if len(different) == 1:
        return {BLOCK: different[0]}
    named: dict[str, BlockLayers] = {}
    for number, block in enumerate(different):
        words = []
        if isinstance(block.second, FeedForwardLayers) and any(isinstance(b.second, ExpertLayers) for b in different):
            words.append("dense")
        a, others = block.heads, [b.heads for b in different if b.heads is not None]
        words += [_kind_of_code(c) for c in block.code]
        if a is not None and a.window and not all(b.window for b in others):
            words.append("sliding")
        if a is not None and not a.rotary and any(b.rotary for b in others):
            words.append("nope")
        name = "_".join(words) or BLOCK
        named[name if name not in named else f"{name}_{number}"] = block
    return named


def _kind_of_code(code: Code) -> str:
    """Returns the name of a kind of block with opaque code: `with_` and the name of the code's module."""
    words = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in code.path.rpartition(".")[2])
    return f"with_{words.lower().strip('_') or 'whole'}"


def _size(roles: DecoderRoles) -> Size:
    a = heads_of(roles)
    seconds = [b.second for b in roles.blocks]
    dense = next((s for s in seconds if isinstance(s, FeedForwardLayers)), None)
    routed = next((s for s in seconds if isinstance(s, ExpertLayers)), None)
    latent = a.latent if a is not None else None
    return Size(
        heads=a.heads if a is not None else 0,
        kv_heads=a.kv_heads if a is not None and _grouped(a) and not latent else 0,
        head_dim=(a.value_dim or a.head_dim) if a is not None else 0,
        nope_dim=a.head_dim - latent.rope_dim if a is not None and latent else 0,
        rope_dim=latent.rope_dim if latent else 0,
        q_lora=latent.q_up.taken if latent and latent.q_up else 0,
        kv_lora=latent.kv_up.taken if latent else 0,
        layers=len(roles.blocks),
        embed=roles.embed,
        ffn=dense.down.taken if dense else 0,
        experts=routed.experts if routed else 0,
        expert_ffn=expert_width(routed, roles.embed) if routed else 0,
        shared_ffn=routed.shared.down.taken if routed and routed.shared else 0,
        vocab=roles.vocab,
        positions=roles.positions_shape[0] if roles.positions else 0,
        top_k=routed.top_k if routed else 0,
        tied=roles.tied,
    )


def _grouped(attention: AttentionLayers) -> bool:
    return attention.k is not None or attention.kv_heads != attention.heads


def _first(roles: DecoderRoles) -> Part:
    part = embedding(positions=bool(roles.positions))
    params = _norm(roles.embedding_norm)
    if params is None:
        return part
    part = _renamed(part, hidden("hidden.embedded"))
    return part + norm("embedding.norm", "embedding_norm", "hidden.embedded", hidden("hidden"), params)


def _renamed(part: Part, output: Tensor) -> Part:
    """Returns `part` with `output` as the output tensor of its last op."""
    last = part.ops[-1]
    kept = tuple(t for t in part.tensors if t.name != last.output)
    return Part(params=part.params, tensors=(*kept, output), ops=(*part.ops[:-1], replace(last, output=output.name)))


def _last(roles: DecoderRoles) -> Part:
    return head(tied=roles.tied, biased=bool(roles.head.bias), before=_norm(roles.norm))


def _block(block: BlockLayers) -> Part:
    first, second = block.attention, block.second
    if isinstance(first, Code) and block.is_whole:
        made = _code(first, MIXER, "hidden", "hidden.mid")
        return made + add("ffn.add", "layers.*", ("hidden.mid",), hidden("hidden"))
    part, stream = Part(), "hidden"
    target = "hidden" if second is None else "hidden.mid"
    if isinstance(first, Code):
        part += _half_of_code(first, MIXER, "attention", "hidden", target)
    elif first is not None:
        part += _attention(first, target)
    if second is None:
        return part
    stream = "hidden" if first is None else "hidden.mid"
    source = "hidden" if second.parallel else stream
    shares = first is not None and second.before is not None and second.before == first.before and second.parallel
    if isinstance(second, FeedForwardLayers):
        return part + _feed_forward(second, source, stream, shares)
    if isinstance(second, Code):
        return part + _half_of_code(second, CHANNELS, "ffn", stream, "hidden", source, shares)
    if shares or second.parallel:
        raise UnknownError("its experts run in parallel to the attention")
    return part + _experts(second, stream)


def _half_of_code(
    half: Code, module: str, slot: str, stream: str, target: str, source: str = "", shares: bool = False
) -> Part:
    """Returns the ops of a half that is opaque code: it reads tensor `source` ("": `stream`), or if `shares`, the
    attention's normed input, and its result is added to `stream` as `target`."""
    part, taken, before = Part(), source or stream, _norm(half.before)
    if shares:
        taken = "attention.in"
    elif before is not None:
        part += norm(f"{slot}.norm", f"layers.*.{slot}_norm", taken, hidden(f"{slot}.in"), before)
        taken = f"{slot}.in"
    part += _code(half, module, taken, f"{slot}.out")
    return part + to_stream(slot, stream=stream, target=target, after=_norm(half.after))


def _code(half: Code, module: str, source: str, target: str) -> Part:
    """Returns the op that stands for opaque code; its parameters keep their own names."""
    params = tuple(_unnamed(f"layers.*.{module}.{name_in(half, n)}", shape) for n, shape in half.params)
    return code(
        f"{module}.code",
        f"layers.*.{module}",
        source,
        hidden(target),
        params,
        line=half.line,
        why=half.why,
        # Each matrix multiplies every token once, unless a measurement (`with_own_code`) replaces this.
        multiply_adds=float(sum(prod(s) for _, s in half.params if len(s) > 1)),
    )


def _unnamed(name: str, shape: tuple[int, ...]) -> Param:
    """Returns a parameter of opaque code, whose dims are named after their lengths."""
    return Param(name=name, shape_dims=tuple((f"{UNNAMED}{n}",) for n in shape), section="", decay=len(shape) > 1)


def _attention(a: AttentionLayers, made: str) -> Part:
    """Returns the ops of attention, from the tensor `hidden` to a tensor called `made`."""
    if a.latent is not None:
        if a.before is None or len(a.before.params) != 1 or a.out.bias or a.after is not None:
            raise UnknownError("its latent attention has a norm or a bias that planc has no ops for")
        return _renamed(latent_attention(q_lora=a.latent.q_up is not None), hidden(made))
    if a.value_dim:
        raise UnknownError("its attention has another head dim for values than for keys")
    if a.after is not None and a.out.bias:
        raise UnknownError(f"{a.out.bias} is added before a norm")
    layers = {"wq": a.q, "wk": a.k or a.q, "wv": a.v or a.q, "wo": a.out}
    return attention(
        window=a.window,
        rotary=a.rotary,
        q_norm=_head_norm(a.q_norm, a.heads, a.head_dim),
        k_norm=_head_norm(a.k_norm, a.kv_heads, a.head_dim),
        biased=[name for name, layer in layers.items() if layer.bias],
        before=_norm(a.before),
        after=_norm(a.after),
        sinks=bool(a.sinks),
        grouped=_grouped(a),
        target=made,
    )


def _feed_forward(f: FeedForwardLayers, taken: str, stream: str, shares: bool) -> Part:
    if f.after is not None and f.down.bias:
        raise UnknownError(f"{f.down.bias} is added before a norm")
    gated = f.fused or len(f.ups) == 2
    layers = {"w1": f.ups[0], "w3": f.ups[-1] if gated else f.ups[0], "w2": f.down}
    return feed_forward(
        gated=gated,
        biased=[name for name, layer in layers.items() if layer.bias],
        before=None if shares else _norm(f.before),
        after=_norm(f.after),
        source="attention.in" if shares else taken,
        stream=stream,
    )


def _experts(e: ExpertLayers, stream: str) -> Part:
    before = _norm(e.before)
    assert before is not None
    return experts(
        shared=e.shared is not None,
        shared_gate=e.shared_gate is not None,
        biased=any(len(shape) == 2 for _, shape in e.params),
        before=before,
        after=_norm(e.after),
        stream=stream,
    )


def _norm(norm: Norm | None) -> NormParams | None:
    """Returns the parameters of a norm over embed: none, a weight, or a weight and a bias; None for no norm."""
    for path, shape in norm.params if norm is not None else ():
        if len(shape) != 1:
            raise UnknownError(f"{path} is a norm's parameter of {len(shape)} dimensions")
    return None if norm is None else LAYER[: len(norm.params)]


def _head_norm(norm: Norm | None, heads: int, head_dim: int) -> HeadNorm | None:
    """Returns the norm of `heads` queries or keys."""
    if norm is None:
        return None
    shapes: dict[Shape, Literal["head", "each", "all"]] = {
        (heads * head_dim,): "all",
        (heads, head_dim): "each",
        (head_dim,): "head",
    }
    for path, shape in norm.params:
        if shape not in shapes:
            raise UnknownError(f"{path} has the shape of neither one head nor all heads")
    over = shapes[norm.params[0][1]] if norm.params else "head"
    return HeadNorm(over=over, params=LAYER[: len(norm.params)])
