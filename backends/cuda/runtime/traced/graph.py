"""Builds the op graph of a traced model from the ops of planc's model catalog."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from planc.backends.cuda.runtime.traced.names import CHANNELS, MIXER, name_in
from planc.backends.cuda.runtime.traced.roles import (
    AttentionLayers,
    BlockLayers,
    Code,
    DecoderRoles,
    ExpertLayers,
    FeedForwardLayers,
    Linear,
    Norm,
    UnknownError,
    expert_width,
    heads_of,
)
from planc.catalog.parts.attention import KEYS, MODULE, QUERIES, core, rope
from planc.catalog.parts.ends import EMBEDDING, embedding, loss
from planc.catalog.parts.experts import mixture
from planc.catalog.parts.latent import latent_attention
from planc.catalog.parts.mlp import MODULE as FFN
from planc.catalog.parts.part import BLOCK, HIDDEN, Part, assemble
from planc.catalog.parts.sizes import Size
from planc.catalog.parts.steps import Shape as Dims
from planc.catalog.parts.steps import add, bias, code, elementwise, hidden, matmul, norm_with, weight
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
    norm = roles.embedding_norm
    if norm is None:
        return part
    part = _renamed(part, hidden("hidden.embedded"))
    return part + _norm("embedding.norm", "embedding_norm", norm, "hidden.embedded", hidden("hidden"))


def _renamed(part: Part, output: Tensor) -> Part:
    """Returns `part` with `output` as the output tensor of its last op."""
    last = part.ops[-1]
    kept = tuple(t for t in part.tensors if t.name != last.output)
    return Part(params=part.params, tensors=(*kept, output), ops=(*part.ops[:-1], replace(last, output=output.name)))


def _last(roles: DecoderRoles) -> Part:
    source, part = "hidden", Part()
    if roles.norm is not None:
        part, source = _norm("final.norm", "norm", roles.norm, source, hidden("head.in")), "head.in"
    return part + loss(source, weight_of=EMBEDDING if roles.tied else "", biased=bool(roles.head.bias))


def _block(block: BlockLayers) -> Part:
    first, second = block.attention, block.second
    if isinstance(first, Code) and block.is_whole:
        made = _code(first, MIXER, "hidden", "hidden.mid")
        return made + add("ffn.add", "layers.*", ("hidden.mid",), hidden("hidden"))
    part, stream = Part(), "hidden"
    target = "hidden" if second is None else "hidden.mid"
    if isinstance(first, Code):
        part += _half_of_code(first, MIXER, "attention", "attention.norm", "hidden", target)
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
        return part + _half_of_code(second, CHANNELS, "ffn", "ffn.norm", stream, "hidden", source, shares)
    if shares or second.parallel:
        raise UnknownError("its experts run in parallel to the attention")
    return part + _experts(second, stream)


def _half_of_code(
    half: Code, module: str, slot: str, norm: str, stream: str, target: str, source: str = "", shares: bool = False
) -> Part:
    """Returns the ops of a half that is opaque code: it reads tensor `source` ("": `stream`), or if `shares`, the
    attention's normed input, and its result is added to `stream` as `target`."""
    part, taken = Part(), source or stream
    if shares:
        taken = "attention.in"
    elif half.before is not None:
        part += _norm(norm, f"layers.*.{slot}_norm", half.before, taken, hidden(f"{slot}.in"))
        taken = f"{slot}.in"
    part += _code(half, module, taken, f"{slot}.out")
    made = f"{slot}.out"
    if half.after is not None:
        made = f"{slot}.out_normed"
        part += _norm(f"{slot}.post_norm", f"layers.*.{slot}_post_norm", half.after, f"{slot}.out", hidden(made))
    return part + add(f"{slot}.add", "layers.*", (stream, made), hidden(target))


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
    query, key = ("heads", "head_dim"), ("kv_heads" if _grouped(a) else "heads", "head_dim")
    kv = KEYS if _grouped(a) else QUERIES
    part, source = Part(), "hidden"
    if a.before is not None:
        source = "attention.in"
        part += _norm("attention.norm", "layers.*.attention_norm", a.before, "hidden", hidden(source))
    fused = a.k is None
    for letter, linear, width, dims in zip("qkv", (a.q, a.k, a.v), (query, key, key), (QUERIES, kv, kv), strict=True):
        layer = a.q if fused else linear
        assert layer is not None
        target = Tensor(name=f"attention.{letter}", dims=dims, region="attention")
        part += matmul(
            f"attention.{letter}",
            "projection",
            f"{MODULE}.w{letter}",
            (width, ("embed",)),
            source,
            target,
            biased=bool(layer.bias),
        )
    ends = {"q": "attention.q", "k": "attention.k"}
    for letter, norm, dims in (("q", a.q_norm, QUERIES), ("k", a.k_norm, kv)):
        if norm is not None:
            target = Tensor(name=f"attention.{letter}_normed", dims=dims, region="attention")
            part += _head_norm(letter, norm, a, ends[letter], target)
            ends[letter] = target.name
    for letter, dims in (("q", QUERIES), ("k", kv)):
        if a.rotary:
            target = Tensor(name=f"attention.{letter}_rotated", dims=dims, region="attention")
            part += rope(f"attention.rope_{letter}", ends[letter], target)
            ends[letter] = target.name
    part += core(ends["q"], ends["k"], "attention.v", window=a.window, sinks=bool(a.sinks))
    wo = f"{MODULE}.wo"
    shape: Dims = (("embed",), ("heads", "head_dim"))
    part += matmul("attention.out", "projection", wo, shape, "attention.mixed", hidden("attention.out"))
    return part + _to_stream("attention", "layers.*.attention_post_norm", a.after, a.out, wo, "hidden", made)


def _to_stream(name: str, module: str, after: Norm | None, layer: Linear, path: str, stream: str, target: str) -> Part:
    """Returns the residual add after `layer`, and the post-norm `after` if there is one. It adds to the tensor `stream`
    and produces `target`."""
    made, part = f"{name}.out", Part()
    if after is not None:
        if layer.bias:
            raise UnknownError(f"{layer.bias} is added before a norm")
        made = f"{name}.out_normed"
        part += _norm(f"{name}.post_norm", module, after, f"{name}.out", hidden(made))
    bias_of = path if layer.bias else ""
    return part + add(f"{name}.add", "layers.*", (stream, made), hidden(target), bias_of=bias_of)


def _feed_forward(f: FeedForwardLayers, taken: str, stream: str, shares: bool) -> Part:
    part, source = Part(), taken
    if shares:
        source = "attention.in"
    elif f.before is not None:
        source = "ffn.in"
        part += _norm("ffn.norm", "layers.*.ffn_norm", f.before, taken, hidden(source))
    part += _gated("ffn", FFN, "ffn", f, source)
    return part + _to_stream("ffn", "layers.*.ffn_post_norm", f.after, f.down, f"{FFN}.w2", stream, "hidden")


def _gated(name: str, module: str, width: str, f: FeedForwardLayers, source: str) -> Part:
    wide = (*HIDDEN[:2], width)
    gated = f.fused or len(f.ups) == 2
    shape: Dims = ((width,), ("embed",))
    part = Part()
    made = []
    for position, (letters, word) in enumerate((("w1", "gate"), ("w3", "up")) if gated else (("w1", "up"),)):
        layer = f.ups[0 if f.fused else position]
        target = Tensor(name=f"{name}.{word}", dims=wide, region="ffn")
        part += matmul(target.name, "ffn", f"{module}.{letters}", shape, source, target, biased=bool(layer.bias))
        made.append(target.name)
    mid = Tensor(name=f"{name}.mid", dims=wide, region="ffn")
    part += elementwise(f"{name}.{'swiglu' if gated else 'gelu'}", "ffn", module, tuple(made), mid)
    back: Dims = (("embed",), (width,))
    return part + matmul(f"{name}.down", "ffn", f"{module}.w2", back, mid.name, hidden(f"{name}.out"))


def _experts(e: ExpertLayers, stream: str) -> Part:
    biased = any(len(shape) == 2 for _, shape in e.params)
    assert e.before is not None
    part, out = mixture(shared=e.shared is not None, shared_gate=e.shared_gate is not None, biased=biased)
    part = _norm("ffn.norm", "layers.*.ffn_norm", e.before, stream, hidden("ffn.in")) + part
    if e.after is not None:
        part += _norm("ffn.post_norm", "layers.*.ffn_post_norm", e.after, out, hidden("ffn.out_normed"))
        out = "ffn.out_normed"
    return part + add("ffn.add", "layers.*", (stream, out), hidden("hidden"))


def _norm(name: str, module: str, norm: Norm, source: str, target: Tensor) -> Part:
    """Returns the op of a norm over embed with the parameters of `norm`: none, a weight, or a weight and a bias."""
    found: list[Param] = []
    for path, shape in norm.params:
        if len(shape) != 1:
            raise UnknownError(f"{path} is a norm's parameter of {len(shape)} dimensions")
    if norm.params:
        found.append(replace(weight(module, (("embed",),)), init="ones", decay=False))
    if len(norm.params) > 1:
        found.append(bias(module, (("embed",),)))
    return norm_with(name, module, source, target, tuple(found), over=("embed",))


def _head_norm(letter: str, norm: Norm, a: AttentionLayers, source: str, target: Tensor) -> Part:
    """Returns the op of a norm of queries or keys (`letter` q or k). It norms each head, with one weight for all heads
    or one per head, or all heads together."""
    heads = target.dims[2]
    number = a.heads if heads == "heads" else a.kv_heads
    shapes = {
        (a.head_dim,): (("head_dim",),),
        (number, a.head_dim): ((heads,), ("head_dim",)),
        (number * a.head_dim,): ((heads, "head_dim"),),
    }
    module = f"{MODULE}.{letter}_norm"
    found: list[Param] = []
    over: tuple[str, ...] = ("head_dim",)
    for (path, shape), word in zip(norm.params, ("weight", "bias"), strict=False):
        if shape not in shapes:
            raise UnknownError(f"{path} has the shape of neither one head nor all heads")
        param = Param(name=f"{module}.{word}", shape_dims=shapes[shape], section="", decay=False)
        found.append(replace(param, init="ones") if word == "weight" else param)
        over = (heads, "head_dim") if norm.over_all(number, a.head_dim) else over
    return norm_with(f"attention.{letter}_norm", module, source, target, tuple(found), over=over)
