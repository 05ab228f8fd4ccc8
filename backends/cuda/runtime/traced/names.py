"""Maps each parameter's name in the user's model to its names in the op graph."""

from __future__ import annotations

from collections.abc import Iterator

from planc.backends.cuda.runtime.traced.roles import (
    AttentionLayers,
    BlockLayers,
    Code,
    DecoderRoles,
    ExpertLayers,
    FeedForwardLayers,
    Linear,
    Norm,
)

MIXER, CHANNELS = "mixer", "channels"
"""Names of the opaque halves of a block. A block that is opaque as a whole has the first name."""
Names = dict[str, tuple[str, ...]]
"""For a parameter's name in the user's model, the names of the op graph's parameters whose concatenation it is."""


def names_of(roles: DecoderRoles) -> Names:
    """Returns the op graph's names for each parameter name of the model with these `roles`."""
    found = dict(_ends(roles))
    for number, block in enumerate(roles.blocks):
        theirs, ours = f"{roles.layers}.{number}.", f"layers.{number}."
        found |= {f"{theirs}{own}": tuple(f"{ours}{n}" for n in names) for own, names in _block(block)}
    return found


def _ends(roles: DecoderRoles) -> Iterator[tuple[str, tuple[str, ...]]]:
    yield roles.embedding, ("tok_embeddings.weight",)
    if roles.positions:
        yield roles.positions, ("pos_embeddings.weight",)
    yield from _norm(roles.embedding_norm, "embedding_norm")
    yield from _norm(roles.norm, "norm")
    if not roles.tied:
        yield from _linear(roles.head, "output")
    elif roles.head.bias:
        yield roles.head.bias, ("output.bias",)


def _block(block: BlockLayers) -> Iterator[tuple[str, tuple[str, ...]]]:
    first, second = block.attention, block.second
    if first is not None:
        yield from _norm(first.before, "attention_norm")
        yield from _norm(first.after, "attention_post_norm")
    yield from _code(first, MIXER) if isinstance(first, Code) else _attention(first) if first is not None else ()
    if second is not None:
        if first is None or second.before != first.before or not second.parallel:
            yield from _norm(second.before, "ffn_norm")
        yield from _norm(second.after, "ffn_post_norm")
    if isinstance(second, Code):
        yield from _code(second, CHANNELS)
    elif second is not None:
        yield from _dense(second, "feed_forward") if isinstance(second, FeedForwardLayers) else _experts(second)


def _code(code: Code, module: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yields (name in the user's block, names in the op graph) for each parameter of opaque code."""
    for name, _ in code.params:
        yield name, (f"{module}.{name_in(code, name)}",)


def name_in(code: Code, name: str) -> str:
    """Returns the parameter's `name` relative to the module of the opaque `code`."""
    return name.removeprefix(f"{code.path}.") if code.path else name


def _attention(a: AttentionLayers) -> Iterator[tuple[str, tuple[str, ...]]]:
    if (latent := a.latent) is not None:
        yield from _linear(a.q, "attention.wq_a" if latent.q_up else "attention.wq")
        yield from _norm(latent.q_norm, "attention.q_norm")
        if latent.q_up:
            yield from _linear(latent.q_up, "attention.wq_b")
        yield from _linear(latent.kv_down, "attention.wkv_a", "attention.wk_rope")
        yield from _norm(latent.kv_norm, "attention.kv_norm")
        yield from _linear(latent.kv_up, "attention.wk_b", "attention.wv_b")
    elif a.k is None or a.v is None:
        yield from _linear(a.q, "attention.wq", "attention.wk", "attention.wv")
    else:
        for layer, name in ((a.q, "wq"), (a.k, "wk"), (a.v, "wv")):
            yield from _linear(layer, f"attention.{name}")
    yield from _linear(a.out, "attention.wo")
    if a.latent is None:
        yield from _norm(a.q_norm, "attention.q_norm")
        yield from _norm(a.k_norm, "attention.k_norm")
    if a.sinks:
        yield a.sinks, ("attention.head_sinks.weight",)


def _dense(f: FeedForwardLayers, module: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    if f.fused:
        yield from _linear(f.ups[0], f"{module}.w1", f"{module}.w3")
    else:
        for layer, name in zip(f.ups, ("w1", "w3"), strict=False):
            yield from _linear(layer, f"{module}.{name}")
    yield from _linear(f.down, f"{module}.w2")


def _experts(e: ExpertLayers) -> Iterator[tuple[str, tuple[str, ...]]]:
    yield from _linear(e.router, "moe.router")
    for role, name in e.by_role().items():
        layers = ("w1", "w3") if role.startswith("up") else ("w2",)
        word = "bias" if role.endswith("_bias") else "weight"
        yield name, tuple(f"moe.experts.{layer}.{word}" for layer in layers)
    if e.shared is not None:
        yield from _dense(e.shared, "moe.shared")
    if e.shared_gate is not None:
        yield from _linear(e.shared_gate, "moe.shared_gate")


def _linear(layer: Linear, *modules: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    yield layer.weight, tuple(f"{module}.weight" for module in modules)
    if layer.bias:
        yield layer.bias, tuple(f"{module}.bias" for module in modules)


def _norm(norm: Norm | None, module: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    for (path, _), word in zip(norm.params if norm else (), ("weight", "bias"), strict=False):
        yield path, (f"{module}.{word}",)
