"""The interface between a JAX model and the program around it: layouts of tensors, and use of weights.

An emitted file implements all of it, so that the module itself can be handed to a model. `UNDIVIDED` implements it for
one device; every plan is compared with that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import jax
import jax.numpy as jnp

Total = Callable[[jax.Array], jax.Array]
"""Counts [B, X] of this rank's part of B sequences -> those of all parts."""
Route = Callable[[jax.Array, Total, int], tuple[jax.Array, jax.Array]]
"""Scores [B, S, X], how to sum counts, how many sequences the loss is a mean of -> the weights and the numbers of
each token's experts, [B S, k] each."""
Answers = tuple[jax.Array, jax.Array]


class Mlp(Protocol):
    """The work of X experts on their rows."""

    def __call__(self, rows: jax.Array, weights: jax.Array, params: Any, counts: jax.Array | None = None, /) -> Any:
        """Rows [X, C, D] at C places of X experts and their weights [X, C] -> [X, C, D]. With `counts` [X] rows [R, D]
        that are sorted by expert, so many of each, and weights [R] -> [R, D]; rows after those are not looked at."""
        ...


Carry = TypeVar("Carry")
"""The values that go from block to block: hidden states [B, S, E], and picks beside them."""
Block = TypeVar("Block", bound=Callable[..., object])


class Hooks(Protocol):
    """Tensor and parameter names are those of the family's op graph."""

    def constrain(self, name: str, x: jax.Array, /) -> jax.Array:
        """The activation `name`, in its dtype and in the layout it rests in."""
        ...

    def weight(self, name: str, w: jax.Array, /) -> jax.Array:
        """The parameter `name` as it is used: whole over the axes it is only stored over."""
        ...

    def linear(self, name: str, x: jax.Array, w: jax.Array, /) -> jax.Array:
        """[..., in] x [out, in] -> [..., out] with the parameter `name`."""
        ...

    def lookup(self, name: str, table: jax.Array, tokens: jax.Array, /) -> jax.Array:
        """Rows of the parameter `name`, [V, E], at tokens [B, S] -> [B, S, E]."""
        ...

    def named(self, name: str, x: jax.Array, /) -> jax.Array:
        """The activation `name` inside `experts`, in its dtype."""
        ...

    def experts(self, route: Route, mlp: Mlp, x: jax.Array, scores: jax.Array, params: Any, /) -> Answers:
        """The experts' answers to x [B, S, D], a token's weighted and summed, [B, S, D]; and how often each was
        picked, [ranks, X].

        scores [B, S, X] are the router's; `params` are the experts' parameters by name.
        """
        ...

    def unpicked(self, layers: int, experts: int, /) -> jax.Array:
        """Zeros to count picks in, [layers, ranks, X], for X `experts`."""
        ...

    def remat(self, block: Block, /) -> Block:
        """The repeated `block`, which saves for its backward the tensors that the plan says."""
        ...

    def layers(self, block: Callable[[Carry, Any], Carry], x: Carry, stack: Any, /) -> Carry:
        """`x` [B, S, E] through `block(x, one layer's parameters)` for each layer of the stack, in order."""
        ...

    def positions(self, length: int, /) -> jax.Array:
        """The place in its sequence of each of the `length` rows [S] of an activation."""
        ...

    def attend(self, q: jax.Array, k: jax.Array, v: jax.Array, /, *window: int) -> jax.Array:
        """Causal attention of all heads, [B, S, H, D], keys [B, S, K, D] and values [B, S, K, W] -> [B, S, H, W].

        Values are at most as wide as keys. `window` is given in a model that has some: the rows that a row sees,
        itself included; 0 for all.
        """
        ...


class Undivided:
    """One device, nothing recomputed: the reference."""

    def constrain(self, name: str, x: jax.Array, /) -> jax.Array:
        return x

    def weight(self, name: str, w: jax.Array, /) -> jax.Array:
        return w

    def linear(self, name: str, x: jax.Array, w: jax.Array, /) -> jax.Array:
        return jnp.einsum("...i,oi->...o", x, w)

    def lookup(self, name: str, table: jax.Array, tokens: jax.Array, /) -> jax.Array:
        return table[tokens]

    def named(self, name: str, x: jax.Array, /) -> jax.Array:
        return x

    def experts(self, route: Route, mlp: Mlp, x: jax.Array, scores: jax.Array, params: Any, /) -> Answers:
        """Every expert looks at every token; a token weighs nothing at experts that it did not pick."""
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
        """The weights [T, k] of tokens at experts that have a place for them, and 0 at others."""
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
