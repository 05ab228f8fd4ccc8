"""The load-balancing gradient of a router; the formula and its source stand in the torch module's `balance`.

The loss itself is not worked out: the slope of its probabilities is known from how often experts were picked,
and is added where the router's backward comes by. So the loss that is told is without it.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from planc.ir.model import Routing


def balanced(
    logits: jax.Array,
    chosen: jax.Array,
    routing: Routing,
    slope: float | jax.Array,
    total: Callable[[jax.Array], jax.Array],
) -> jax.Array:
    """Logits [B, S, X] in fp32 as they are; their gradient also evens out the picks, chosen [B, S, k].

    `slope`: the coefficient over the sequences that the loss is a mean of. `total` sums counts [B, X] over the
    ranks that have other parts of the same sequences.
    """
    experts, k = logits.shape[-1], chosen.shape[-1]
    counts = total(jnp.sum(jax.nn.one_hot(chosen, experts), axis=(1, 2)))
    tokens = counts.sum(-1, keepdims=True) / k
    each = slope * experts * counts / (k * tokens**2)
    return _with_balance_gradient(logits, _shares(logits, routing), jnp.broadcast_to(each[:, None], logits.shape))


def _shares(logits: jax.Array, routing: Routing) -> jax.Array:
    """Each token's scores as parts of their sum."""
    if routing.scores == "softmax":
        return jax.nn.softmax(logits)
    scores = jax.nn.sigmoid(logits)
    return scores / scores.sum(-1, keepdims=True)


@jax.custom_vjp
def _with_balance_gradient(x: jax.Array, shares: jax.Array, slope: jax.Array) -> jax.Array:
    return x


def _forward(x: jax.Array, shares: jax.Array, slope: jax.Array) -> tuple[jax.Array, jax.Array]:
    return x, slope


def _backward(slope: jax.Array, dx: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    return dx, slope, jnp.zeros_like(slope)


_with_balance_gradient.defvjp(_forward, _backward)
