"""The load-balancing gradient of a router; the torch module's `balance` has the formula and its source.

Only the gradient is computed, from the expert counts, and added in the router's backward. The reported loss does not
include the load-balancing loss.
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
    """Return the logits [B, S, X] (fp32) unchanged. Their backward adds the gradient of the load-balancing loss.

    `chosen` [B, S, k] are the selected experts, `slope` is the coefficient over the number of sequences in the mean of
    the loss, and `total` sums counts [B, X] over the ranks that hold other parts of the same sequences.
    """
    experts, k = logits.shape[-1], chosen.shape[-1]
    counts = total(jnp.sum(jax.nn.one_hot(chosen, experts), axis=(1, 2)))
    tokens = counts.sum(-1, keepdims=True) / k
    each = slope * experts * counts / (k * tokens**2)
    return _with_balance_gradient(logits, _shares(logits, routing), jnp.broadcast_to(each[:, None], logits.shape))


def _shares(logits: jax.Array, routing: Routing) -> jax.Array:
    """Return the router's scores for each token, normalized so that a token's scores sum to 1."""
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
