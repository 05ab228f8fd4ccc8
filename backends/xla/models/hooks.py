"""What a JAX model asks of the program around it: where tensors rest and how weights are used.

An emitted file answers all four, so that the module itself can be handed to a model. `UNDIVIDED`
answers them for one device; every plan is compared with that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeVar

import jax.numpy as jnp

if TYPE_CHECKING:
    import jax

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

    def remat(self, block: Block, /) -> Block:
        """The repeated block, keeping for the backward what the plan says."""
        ...


class Undivided:
    """One device, nothing recomputed: the reference."""

    def constrain(self, name: str, x: jax.Array, /) -> jax.Array:
        return x

    def weight(self, name: str, w: jax.Array, /) -> jax.Array:
        return w

    def linear(self, name: str, x: jax.Array, w: jax.Array, /) -> jax.Array:
        return jnp.einsum("...i,oi->...o", x, w)

    def remat(self, block: Block, /) -> Block:
        return block


UNDIVIDED = Undivided()
