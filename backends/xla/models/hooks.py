"""The interface between a JAX model and the emitted program: layouts of tensors, and use of weights.

An emitted module implements all of it, so it can be passed to a model as `hooks`. `UNDIVIDED` implements it for one
device; tests compare every plan with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import jax
import jax.numpy as jnp

Total = Callable[[jax.Array], jax.Array]
"""Sums counts [B, X] of this rank's part of B sequences over all parts."""
Route = Callable[[jax.Array, Total, int], tuple[jax.Array, jax.Array]]
"""Maps router scores [B, S, X], a function that sums counts, and the number of sequences in the mean of the loss to the
weights and the indices of each token's experts, [B S, k] each."""
Product = Callable[[jax.Array, jax.Array], jax.Array]
"""Multiplies rows by each row's expert's parameter."""
Answers = tuple[jax.Array, jax.Array]


class Mlp(Protocol):
    """The MLPs of a rank's X experts, each applied to the rows (copies of tokens) routed to it."""

    def __call__(self, rows: jax.Array, weights: jax.Array, params: Any, times: Product = ..., /) -> Any:
        """Return the experts' outputs times `weights`, for `rows` [X, C, D] (C slots per expert) and weights [X, C]; or
        for rows [R, D] sorted by expert and weights [R], which `times` multiplies by parameters [X, out, in]."""
        ...


Carry = TypeVar("Carry")
"""The values passed from block to block: hidden states [B, S, E], or these and the expert counts."""
Block = TypeVar("Block", bound=Callable[..., object])


class Hooks(Protocol):
    """The functions that a model calls, by which a program lays out tensors and runs layers. Names of tensors and
    parameters are those of the family's op graph."""

    def constrain(self, name: str, x: jax.Array, /) -> jax.Array:
        """Return `x`, the activation `name`, cast to its dtype and constrained to its layout."""
        ...

    def weight(self, name: str, w: jax.Array, /) -> jax.Array:
        """Return the parameter `name` for use, gathered over the axes that shard only its storage."""
        ...

    def linear(
        self, name: str, x: jax.Array, w: jax.Array, out: tuple[int, ...] = (-1,), contracted: int = 1, /
    ) -> jax.Array:
        """Return x [..., in] times the parameter `name`, w [out, in]: [..., out].

        With `out` (-1, D) the result is [..., heads, D]; if two dims are `contracted`, x is [..., heads, D].
        """
        ...

    def lookup(self, name: str, table: jax.Array, tokens: jax.Array, /) -> jax.Array:
        """Return the rows of the parameter `name`, [V, E], at tokens [B, S]: [B, S, E]."""
        ...

    def named(self, name: str, x: jax.Array, /) -> jax.Array:
        """Return `x`, the activation `name` inside `experts`, in its dtype."""
        ...

    def experts(self, route: Route, mlp: Mlp, x: jax.Array, scores: jax.Array, params: Any, /) -> Answers:
        """Return the weighted sum of each token's experts [B, S, D] for x [B, S, D], and the expert counts [ranks, X].

        `scores` [B, S, X] are the router's; `params` are the experts' parameters by name.
        """
        ...

    def unpicked(self, layers: int, experts: int, /) -> jax.Array:
        """Return zeros as expert counts, [layers, ranks, X], for X `experts`."""
        ...

    def remat(self, block: Block, /) -> Block:
        """Return the repeated `block` with rematerialization: it saves only the tensors that the plan names."""
        ...

    def layers(self, block: Callable[[Carry, Any], Carry], x: Carry, stack: Any, /) -> Carry:
        """Return `x` [B, S, E] after `block(x, one layer's parameters)` for each layer of the stack, in order."""
        ...

    def positions(self, length: int, /) -> jax.Array:
        """Return the position in its sequence of each of the `length` rows of an activation, [S]."""
        ...

    def attend(self, q: jax.Array, k: jax.Array, v: jax.Array, /, *window: int) -> jax.Array:
        """Return causal attention of queries [B, S, H, D], keys [B, S, K, D] and values [B, S, K, W]: [B, S, H, W].

        W is at most D. A model with sliding windows passes `window`: the number of rows that a row attends to, itself
        included; 0 for all.
        """
        ...


class Undivided:
    """The hooks of one device without recomputation: the reference."""

    def constrain(self, name: str, x: jax.Array, /) -> jax.Array:
        return x

    def weight(self, name: str, w: jax.Array, /) -> jax.Array:
        return w

    def linear(
        self, name: str, x: jax.Array, w: jax.Array, out: tuple[int, ...] = (-1,), contracted: int = 1, /
    ) -> jax.Array:
        y = self.product(name, x.reshape(*x.shape[:-contracted], -1), w)
        return y.reshape(*y.shape[:-1], *out)

    def product(self, name: str, x: jax.Array, w: jax.Array, /) -> jax.Array:
        """Return x [..., in] times the parameter `name`, w [out, in]: [..., out]."""
        return jnp.einsum("...i,oi->...o", x, w)

    def lookup(self, name: str, table: jax.Array, tokens: jax.Array, /) -> jax.Array:
        return table[tokens]

    def named(self, name: str, x: jax.Array, /) -> jax.Array:
        return x

    def experts(self, route: Route, mlp: Mlp, x: jax.Array, scores: jax.Array, params: Any, /) -> Answers:
        """Run every expert on every token; the weight of a token is 0 at experts that it did not select."""
        rows = x.reshape(-1, x.shape[-1])
        weights, chosen = route(scores, lambda counts: counts, len(x))
        experts = scores.shape[-1]
        kept = self._weights_within_capacity(chosen, x.shape, weights, experts)
        weighed = jnp.sum(jax.nn.one_hot(chosen, experts) * kept[..., None], axis=1)
        made = mlp(jnp.broadcast_to(rows, (experts, *rows.shape)), weighed.T, params)
        picked = jnp.sum(jax.nn.one_hot(chosen, experts, dtype=jnp.int32), axis=(0, 1))
        return jnp.sum(made, axis=0).reshape(x.shape), picked[None]

    def unpicked(self, layers: int, experts: int, /) -> jax.Array:
        return jnp.zeros((layers, 1, experts), jnp.int32)

    def _weights_within_capacity(
        self, chosen: jax.Array, shape: tuple[int, ...], weights: jax.Array, experts: int
    ) -> jax.Array:
        """Return the `weights` [T, k] of tokens within the capacity of their experts, and 0 for dropped tokens."""
        return weights

    def remat(self, block: Block, /) -> Block:
        return block

    def layers(self, block: Callable[[Carry, Any], Carry], x: Carry, stack: Any, /) -> Carry:
        return jax.lax.scan(lambda x, layer: (block(x, layer), None), x, stack)[0]

    def positions(self, length: int, /) -> jax.Array:
        return jnp.arange(length)

    def attend(self, q: jax.Array, k: jax.Array, v: jax.Array, /, *window: int) -> jax.Array:
        local = (window[0] - 1, 0) if any(window) else None
        own, width = k.shape[-1], max(k.shape[-1], v.shape[-1])
        q = q * (width / own) ** 0.5  # the function divides scores by the root of the width that it sees
        q, k, wide = (jnp.pad(x, [(0, 0)] * 3 + [(0, width - x.shape[-1])]) for x in (q, k, v))  # it wants one width
        return jax.nn.dot_product_attention(q, k, wide, is_causal=True, local_window_size=local)[..., : v.shape[-1]]


UNDIVIDED = Undivided()
