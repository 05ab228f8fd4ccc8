"""By hand: the parts of a small Llama that know nothing of devices."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

HEAD_DIM = 8
BLOCK = ("attention_norm", "attention.wq", "attention.wk", "attention.wv", "attention.wo")
BLOCK += ("ffn_norm", "feed_forward.w1", "feed_forward.w3", "feed_forward.w2")
NAMES = {name: f"layers.*.{name}.weight" for name in BLOCK}


def norm(x: jax.Array, weight: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5) * weight


def rope(x: jax.Array) -> jax.Array:
    half = x.shape[-1] // 2
    speed = 10000.0 ** (-jnp.arange(half) / half)
    turn = (jnp.arange(x.shape[1])[:, None] * speed)[None, :, None]
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * jnp.cos(turn) - b * jnp.sin(turn), b * jnp.cos(turn) + a * jnp.sin(turn)], -1)


def heads(x: jax.Array) -> jax.Array:
    return x.reshape(*x.shape[:-1], -1, HEAD_DIM)


def attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    mixed = jax.nn.dot_product_attention(rope(heads(q)), rope(heads(k)), heads(v), is_causal=True)
    return mixed.reshape(*q.shape)


def cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
    picked = jnp.sum(jax.nn.one_hot(targets, logits.shape[-1]) * logits, axis=-1)
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - picked)


def optimizer() -> optax.GradientTransformation:
    decayed = lambda params: {name: "norm" not in name for name in params}  # noqa: E731
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3, 0.9, 0.95, weight_decay=0.1, mask=decayed))


def block_of(params: dict[str, Any]) -> dict[str, Any]:
    """A block's parameters by short name."""
    return {short: params[full] for short, full in NAMES.items()}
