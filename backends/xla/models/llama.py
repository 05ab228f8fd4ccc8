"""The dense Llama family in JAX: the twin of the bundled torch module.

Parameters are a flat dict from name to array, named and stored as in `planc.catalog.llama` (linear weights [out, in]);
those of the repeated block are stacked along a leading layers dim.

Shape letters: B sequences, S tokens per sequence, E embed, H heads, K key-value heads, D head_dim, F ffn, V vocab, L
layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from planc.backends.xla.analysis.stacked_params import numbers, runs, stacked

if TYPE_CHECKING:
    from planc.backends.xla.models.hooks import Hooks
    from planc.ir.model import Model, Section

Params = dict[str, jax.Array]
Loss = Callable[[Params, jax.Array, jax.Array], jax.Array]
Logits = Callable[[Params, jax.Array], jax.Array]
Half = Callable[[jax.Array, Params], jax.Array]
"""Half a block without the residual: maps normed hidden states [B, S, E] and a layer's params to the term to add."""
Block = Callable[[jax.Array, Params], jax.Array]


def shapes(model: Model) -> dict[str, tuple[int, ...]]:
    """Return the shape of each parameter of `model` by name; parameters of blocks are stacked: [L, ...]."""
    stacks = {p.name: (len(numbers(model, p)),) for p in model.params if stacked(model, p)}
    return {p.name: (*stacks.get(p.name, ()), *model.shape(p)) for p in model.params}


def build_loss(model: Model, hooks: Hooks, block: Callable[[Model, Hooks, Section], Block] | None = None) -> Loss:
    """Return `loss(params, tokens [B, S], targets [B, S])`, the mean cross entropy per token in fp32."""
    hidden = build_hidden(model, hooks, block)

    def loss(params: Params, tokens: jax.Array, targets: jax.Array) -> jax.Array:
        return loss_of(model, hooks, params, hidden(params, tokens), targets)

    return loss


def build_logits(model: Model, hooks: Hooks, block: Callable[[Model, Hooks, Section], Block] | None = None) -> Logits:
    """Return `logits(params, tokens [B, S])` -> [B, S, V]; `block` as in `build_hidden`."""
    hidden = build_hidden(model, hooks, block)
    return lambda params, tokens: headed(model, hooks, params, hidden(params, tokens))


def build_hidden(model: Model, hooks: Hooks, block: Callable[[Model, Hooks, Section], Block] | None = None) -> Logits:
    """Return `hidden(params, tokens [B, S])` -> [B, S, E], the output of the last block.

    `block` builds a block of a given kind; a family whose blocks are not Llama's passes a function of its own.
    """
    blocks = {kind: (block or dense_block)(model, hooks, kind) for kind in model.blocks}

    def hidden(params: Params, tokens: jax.Array) -> jax.Array:
        x = embedded(hooks, params, tokens)
        for kind, stack in stacks(model, params):
            x = hooks.layers(blocks[kind], x, stack)
        return x

    return hidden


def embedded(hooks: Hooks, params: Params, tokens: jax.Array) -> jax.Array:
    """Return the embeddings of `tokens` [B, S]: [B, S, E]."""
    name = "tok_embeddings.weight"
    return hooks.constrain("hidden", hooks.lookup(name, params[name], tokens))


def stacks(model: Model, params: Params) -> Iterator[tuple[Section, Params]]:
    """Yield each run of consecutive layers of one kind of `model`: the kind, and its slice of `params`."""
    for kind, parts in runs(model):
        yield kind, {name: params[name] if part is None else params[name][part] for name, part in parts.items()}


def headed(model: Model, hooks: Hooks, params: Params, x: jax.Array) -> jax.Array:
    """Return the logits [B, S, V] of hidden states `x` [B, S, E]."""
    name, x = _head(model, hooks, params, x)
    return hooks.constrain("logits", hooks.linear(name, x, params[name]))


def _head(model: Model, hooks: Hooks, params: Params, x: jax.Array) -> tuple[str, jax.Array]:
    """Return the name of the head's parameter, and its input."""
    x = rms_norm(x, hooks.weight("norm.weight", params["norm.weight"]), model.norm_eps)
    return "tok_embeddings.weight" if model.tied else "output.weight", hooks.constrain("head.in", x)


def loss_of(model: Model, hooks: Hooks, params: Params, x: jax.Array, targets: jax.Array) -> jax.Array:
    """Return the loss of hidden states `x` [B, S, E], by the program's own function if it computes it in chunks."""
    chunked = getattr(hooks, "chunked_loss", None)
    if chunked is None:
        return cross_entropy(headed(model, hooks, params, x), targets)
    name, x = _head(model, hooks, params, x)
    return chunked(name, x, params[name], targets)  # type: ignore[no-any-return]


def dense_block(model: Model, hooks: Hooks, kind: Section) -> Block:
    """Return a block with an MLP."""
    return build_block(model, hooks, build_attention(model, hooks, kind), build_feed_forward(hooks))


def build_block(model: Model, hooks: Hooks, attention: Half, feed_forward: Half) -> Block:
    """Return `block(x [B, S, E], one layer's params)` -> [B, S, E], made of attention and `feed_forward`."""

    halfway = build_halfway(model, hooks, attention)

    def block(x: jax.Array, layer: Params) -> jax.Array:
        x, inner = halfway(x, layer)
        return hooks.constrain("hidden", x + feed_forward(inner, layer))

    return block


def build_halfway(
    model: Model, hooks: Hooks, attention: Half
) -> Callable[[jax.Array, Params], tuple[jax.Array, jax.Array]]:
    """Return `halfway(x [B, S, E], one layer's params)` -> (x after attention, the norm of that x: the MLP's input)."""

    def norm(name: str, x: jax.Array, layer: Params) -> jax.Array:
        return rms_norm(x, hooks.weight(name, layer[name]), model.norm_eps)

    def halfway(x: jax.Array, layer: Params) -> tuple[jax.Array, jax.Array]:
        inner = hooks.constrain("attention.in", norm("layers.*.attention_norm.weight", x, layer))
        x = hooks.constrain("hidden.mid", x + attention(inner, layer))
        return x, hooks.constrain("ffn.in", norm("layers.*.ffn_norm.weight", x, layer))

    return halfway


def build_attention(model: Model, hooks: Hooks, kind: Section = "block", *, normed: bool = False) -> Half:
    """Return causal attention with grouped queries and rotary positions: [B, S, E] -> [B, S, E].

    If blocks of this `kind` have a sliding window, each row attends to the rows in its window. With `normed`, queries
    and keys have an RMS norm per head, with one weight for all heads (Qwen3). Queries, keys and values have biases if
    the `model` has them (Qwen2).
    """
    head_dim, window = model.sizes["head_dim"], _window(model, kind)

    def head_norm(part: str, x: jax.Array, layer: Params) -> jax.Array:
        name = f"layers.*.attention.{part}_norm.weight"
        return hooks.constrain(f"attention.{part}_normed", rms_norm(x, hooks.weight(name, layer[name]), model.norm_eps))

    def heads(part: str, x: jax.Array, layer: Params) -> jax.Array:
        name = f"layers.*.attention.w{part}.weight"
        made, bias = hooks.linear(name, x, layer[name], (-1, head_dim)), f"layers.*.attention.w{part}.bias"
        if bias in model.param:
            made += hooks.weight(bias, layer[bias]).reshape(-1, head_dim).astype(made.dtype)
        return hooks.constrain(f"attention.{part}", made)

    def attention(x: jax.Array, layer: Params) -> jax.Array:
        angles = rotary_angles(hooks.positions(x.shape[1]), head_dim, model.rope_theta, model.rope_scaling)
        q, k, v = (heads(part, x, layer) for part in "qkv")
        if normed:
            q, k = head_norm("q", q, layer), head_norm("k", k, layer)
        q = hooks.constrain("attention.q_rotated", rotate(q, angles))
        k = hooks.constrain("attention.k_rotated", rotate(k, angles))
        mixed = hooks.constrain("attention.mixed", hooks.attend(q, k, v, *window))
        name = "layers.*.attention.wo.weight"
        return hooks.constrain("attention.out", hooks.linear(name, mixed, layer[name], (-1,), 2))

    return attention


def _window(model: Model, kind: Section) -> tuple[int, ...]:
    """Return the sliding window of a `kind` of block as an argument of `attend`: (number of rows,), (0,) for all rows,
    or () for a model without windows."""
    of = {k: next(o.window for o in model.ops[k] if o.kind == "attention") for k in model.blocks}
    return (of[kind],) if any(of.values()) else ()


def build_feed_forward(hooks: Hooks, module: str = "layers.*.feed_forward", tensors: str = "ffn") -> Half:
    """Return w2(silu(w1 x) * w3 x): [B, S, E] -> [B, S, E]. `module` and `tensors` are prefixes of parameter and tensor
    names."""

    def linear(part: str, x: jax.Array, layer: Params) -> jax.Array:
        name = f"{module}.{part}.weight"
        return hooks.linear(name, x, layer[name])

    def feed_forward(x: jax.Array, layer: Params) -> jax.Array:
        gate = hooks.constrain(f"{tensors}.gate", linear("w1", x, layer))
        up = hooks.constrain(f"{tensors}.up", linear("w3", x, layer))
        mid = hooks.constrain(f"{tensors}.mid", jax.nn.silu(gate) * up)
        return hooks.constrain(f"{tensors}.out", linear("w2", mid, layer))

    return feed_forward


def rms_norm(x: jax.Array, w: jax.Array, eps: float) -> jax.Array:
    """Return `x` / rms(x) * `w` over the last dim, computed in fp32, in the dtype of `x`."""
    wide = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
    return (wide * scale * w).astype(x.dtype)


def rotary_angles(
    positions: jax.Array, head_dim: int, theta: float, scaling: Mapping[str, Any] | None = None
) -> jax.Array:
    """Return `positions` [S] times the frequencies `theta`^(-2i / D): [S, D / 2] in fp32, for D `head_dim`.

    `scaling` is the config's RoPE scaling for longer contexts: `linear`, or Llama 3's.
    """
    frequencies = theta ** (-jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim)
    if scaling:
        frequencies = _scaled(frequencies, scaling)
    return positions.astype(jnp.float32)[:, None] * frequencies


def _scaled(frequencies: jax.Array, scaling: Mapping[str, Any]) -> jax.Array:
    """Return `frequencies` (radians per token) scaled for a longer context, as the torch module scales them."""
    divided: jax.Array = frequencies / scaling["factor"]
    if scaling["rope_type"] == "linear":
        return divided
    turns = scaling["original_max_position_embeddings"] * frequencies / (2 * jnp.pi)
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    share = jnp.clip((turns - low) / (high - low), 0, 1)
    mixed: jax.Array = (1 - share) * divided + share * frequencies
    return mixed


def rotate(x: jax.Array, angles: jax.Array) -> jax.Array:
    """Return `x` [B, S, H, D] rotated by `angles` [S, D / 2]: dim i pairs with dim i + D / 2 (the half-split
    convention)."""
    cos, sin = (jnp.concatenate([f(angles)] * 2, axis=-1)[:, None, :] for f in (jnp.cos, jnp.sin))
    first, second = jnp.split(x, 2, axis=-1)
    # Halves change places in the dtype of x: XLA writes them out, and in fp32 they are twice as many bytes.
    turned = x.astype(jnp.float32) * cos + jnp.concatenate([-second, first], axis=-1).astype(jnp.float32) * sin
    return turned.astype(x.dtype)


def cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Return the mean of -log softmax(logits [B, S, V])[targets [B, S]] in fp32.

    The target's logit is selected by a mask, not by an index: with a sharded vocab a mask is local and leaves one small
    all-reduce.
    """
    wide = logits.astype(jnp.float32)
    chosen = targets[..., None] == jnp.arange(wide.shape[-1])
    picked = jnp.sum(jnp.where(chosen, wide, 0.0), axis=-1)
    return jnp.mean(jax.nn.logsumexp(wide, axis=-1) - picked)
