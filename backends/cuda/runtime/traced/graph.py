"""The op graph of a recorded model, made of the same steps as the catalog's, and the names of its parameters there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from planc.backends.cuda.runtime.traced.roles import (
    Attention,
    Block,
    Experts,
    FeedForward,
    Linear,
    Norm,
    Roles,
    UnknownError,
)
from planc.catalog.parts.attention import KEYS, MODULE, QUERIES, core, rope
from planc.catalog.parts.ends import embedding, embedding_with_positions, loss
from planc.catalog.parts.experts import mixture
from planc.catalog.parts.latent import latent_attention
from planc.catalog.parts.mlp import MODULE as FFN
from planc.catalog.parts.part import BLOCK, HIDDEN, Part, assemble
from planc.catalog.parts.sizes import Size
from planc.catalog.parts.steps import Shape as Dims
from planc.catalog.parts.steps import add, bias, elementwise, hidden, matmul, norm_with, weight
from planc.ir.model import Model, Param, Tensor

FAMILY = "traced"


def model_of_roles(name: str, roles: Roles) -> Model:
    """The op graph of these roles, as a model called `name`. Raises UnknownError."""
    _refuse_rest(roles)
    kinds = _kinds(roles.blocks)
    first, size = roles.blocks[0], _size(roles)
    parts = {kind: _block(block) for kind, block in kinds.items()}
    order = tuple(next(kind for kind, block in kinds.items() if block == b) for b in roles.blocks)
    for block in kinds.values():
        if _widths(block.attention) != _widths(first.attention):
            raise UnknownError("its blocks have attentions of different widths")
    try:
        return assemble(
            name=name,
            family=FAMILY,
            size=size,
            changes=None,
            first=_first(roles),
            blocks={kind: parts[kind] for kind in _in_order(parts)},
            last=_last(roles),
            kinds=order,
        )
    except AssertionError as error:
        raise UnknownError(f"{error} has another shape in another kind of block") from None


def _refuse_rest(roles: Roles) -> None:
    rest = [n for n, _ in roles.rest if n not in _norm_names(roles.embedding_norm)]
    rest += [f"{roles.layers}.*.{n}" for b in roles.blocks for n, _ in b.rest]
    if rest:
        shown = ", ".join(dict.fromkeys(rest))
        raise UnknownError(f"parameters without a part that planc knows: {shown}")


def _in_order(parts: Mapping[str, Part]) -> list[str]:
    """Dense and sliding kinds first, as the catalog has them."""
    return sorted(parts, key=lambda kind: kind == BLOCK)


def _kinds(blocks: tuple[Block, ...]) -> dict[str, Block]:
    """Each kind of block under a name that says how it differs."""
    different = list(dict.fromkeys(blocks))
    if len(different) == 1:
        return {BLOCK: different[0]}
    named: dict[str, Block] = {}
    for number, block in enumerate(different):
        words = []
        if isinstance(block.second, FeedForward) and any(isinstance(b.second, Experts) for b in different):
            words.append("dense")
        if block.attention.window and not all(b.attention.window for b in different):
            words.append("sliding")
        if not block.attention.rotary and any(b.attention.rotary for b in different):
            words.append("nope")
        name = "_".join(words) or BLOCK
        named[name if name not in named else f"{name}_{number}"] = block
    return named


def _widths(attention: Attention) -> tuple[int, ...]:
    return attention.heads, attention.kv_heads, attention.head_dim, attention.value_dim


def _size(roles: Roles) -> Size:
    attention = roles.blocks[0].attention
    seconds = [b.second for b in roles.blocks]
    dense = [s for s in seconds if isinstance(s, FeedForward)]
    routed = [s for s in seconds if isinstance(s, Experts)]
    if len({s.down.taken for s in dense}) > 1 or len({(s.experts, expert_width(s, roles.embed)) for s in routed}) > 1:
        raise UnknownError("its blocks have feed-forward layers of different widths")
    latent = attention.latent
    return Size(
        nope_dim=attention.head_dim - latent.rope_dim if latent else 0,
        rope_dim=latent.rope_dim if latent else 0,
        q_lora=latent.q_up.taken if latent and latent.q_up else 0,
        kv_lora=latent.kv_up.taken if latent else 0,
        layers=len(roles.blocks),
        embed=roles.embed,
        heads=attention.heads,
        kv_heads=attention.kv_heads if _grouped(attention) and not latent else 0,
        head_dim=attention.value_dim or attention.head_dim,
        ffn=dense[0].down.taken if dense else 0,
        experts=routed[0].experts if routed else 0,
        expert_ffn=expert_width(routed[0], roles.embed) if routed else 0,
        shared_ffn=routed[0].shared.down.taken if routed and routed[0].shared else 0,
        vocab=roles.vocab,
        positions=roles.positions_shape[0] if roles.positions else 0,
        top_k=routed[0].top_k if routed else 0,
        tied=roles.tied,
    )


def _grouped(attention: Attention) -> bool:
    """True where key heads have a dim of their own."""
    return attention.k is not None or attention.kv_heads != attention.heads


def expert_width(experts: Experts, embed: int) -> int:
    """Width inside one expert. Raises UnknownError for experts that are not gated."""
    large = sorted(prod(shape) for _, shape in experts.params if len(shape) == 3)
    if len(large) != 2 or large[1] != 2 * large[0]:
        raise UnknownError("its experts are no gated layers: two weights, one twice as large as the other")
    return large[0] // (experts.experts * embed)


def _first(roles: Roles) -> Part:
    part = embedding_with_positions() if roles.positions else embedding()
    norm = roles.embedding_norm
    if norm is None:
        return part
    last = part.ops[-1]
    renamed = replace(last, output="hidden.embedded")
    kept = tuple(t for t in part.tensors if t.name != "hidden")
    part = Part(params=part.params, tensors=(*kept, hidden("hidden.embedded")), ops=(*part.ops[:-1], renamed))
    return part + _norm("embedding.norm", "embedding_norm", norm, "hidden.embedded", hidden("hidden"))


def _norm_names(norm: Norm | None) -> set[str]:
    return {n for n, _ in norm.params} if norm else set()


def _last(roles: Roles) -> Part:
    source, part = "hidden", Part()
    if roles.norm is not None:
        part, source = _norm("final.norm", "norm", roles.norm, "hidden", hidden("head.in")), "head.in"
    return part + loss(source, tied=roles.tied, biased=bool(roles.head.bias))


def _block(block: Block) -> Part:
    attention, second = block.attention, block.second
    part = _attention(attention)
    source = "hidden" if second.parallel else "hidden.mid"
    shares = second.before is not None and second.before == attention.before and second.parallel
    if isinstance(second, FeedForward):
        return part + _feed_forward(second, source, shares)
    if shares or second.parallel:
        raise UnknownError("its experts stand beside the attention")
    return part + _experts(second)


def _attention(a: Attention) -> Part:
    if a.latent is not None:
        if a.before is None or len(a.before.params) != 1 or a.out.bias or a.after is not None:
            raise UnknownError("its latent attention has a norm or a bias that planc has no ops for")
        return latent_attention(q_lora=a.latent.q_up is not None)
    if a.value_dim:
        raise UnknownError("its attention has values of another width than its keys")
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
    return part + _to_stream("attention", "layers.*.attention_post_norm", a.after, a.out, wo, "hidden", "hidden.mid")


def _to_stream(name: str, module: str, after: Norm | None, layer: Linear, path: str, stream: str, target: str) -> Part:
    """The sum of the stream and what a half of a block makes, behind its second norm if it has one."""
    made, part = f"{name}.out", Part()
    if after is not None:
        if layer.bias:
            raise UnknownError(f"{layer.bias} is added before a norm")
        made = f"{name}.out_normed"
        part += _norm(f"{name}.post_norm", module, after, f"{name}.out", hidden(made))
    bias_of = path if layer.bias else ""
    return part + add(f"{name}.add", "layers.*", (stream, made), hidden(target), bias_of=bias_of)


def _feed_forward(f: FeedForward, stream: str, shares: bool) -> Part:
    part, source = Part(), stream
    if shares:
        source = "attention.in"
    elif f.before is not None:
        source = "ffn.in"
        part += _norm("ffn.norm", "layers.*.ffn_norm", f.before, stream, hidden(source))
    part += _gated("ffn", FFN, "ffn", f, source)
    return part + _to_stream("ffn", "layers.*.ffn_post_norm", f.after, f.down, f"{FFN}.w2", "hidden.mid", "hidden")


def _gated(name: str, module: str, width: str, f: FeedForward, source: str) -> Part:
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


def _experts(e: Experts) -> Part:
    biased = any(len(shape) == 2 for _, shape in e.params)
    if bool(e.router.bias) != biased or e.before is None:
        raise UnknownError("its experts have a form that planc has no ops for: a router or an input of another kind")
    if e.shared is not None and any(layer.bias for layer in (*e.shared.ups, e.shared.down)):
        raise UnknownError("its shared expert has biases")
    part, out = mixture(shared=e.shared is not None, shared_gate=e.shared_gate is not None, biased=biased)
    part = _norm("ffn.norm", "layers.*.ffn_norm", e.before, "hidden.mid", hidden("ffn.in")) + part
    if e.after is not None:
        part += _norm("ffn.post_norm", "layers.*.ffn_post_norm", e.after, out, hidden("ffn.out_normed"))
        out = "ffn.out_normed"
    return part + add("ffn.add", "layers.*", ("hidden.mid", out), hidden("hidden"))


def _norm(name: str, module: str, norm: Norm, source: str, target: Tensor) -> Part:
    """A norm over the width of the stream, with the parameters that it has: none, a weight, a weight and a bias."""
    found: list[Param] = []
    for path, shape in norm.params:
        if len(shape) != 1:
            raise UnknownError(f"{path} is a norm's parameter of {len(shape)} dimensions")
    if norm.params:
        found.append(replace(weight(module, (("embed",),)), init="ones", decay=False))
    if len(norm.params) > 1:
        found.append(bias(module, (("embed",),)))
    return norm_with(name, module, source, target, tuple(found), over=("embed",))


def _head_norm(letter: str, norm: Norm, a: Attention, source: str, target: Tensor) -> Part:
    """A norm of queries or keys: of each head with one weight or a weight each, or over all heads together."""
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
            raise UnknownError(f"{path} fits neither a head nor all heads")
        param = Param(name=f"{module}.{word}", shape_dims=shapes[shape], section="", decay=False)
        found.append(replace(param, init="ones") if word == "weight" else param)
        over = (heads, "head_dim") if norm.over_all(number, a.head_dim) else over
    return norm_with(f"attention.{letter}_norm", module, source, target, tuple(found), over=over)
