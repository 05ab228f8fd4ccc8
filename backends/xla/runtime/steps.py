"""The functions of a program in training on JAX."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jax
    from jax.sharding import Sharding


@dataclass(frozen=True)
class Steps:
    """The jitted functions of a program on the state {"params", "optimizer"}, and their arguments' shardings."""

    step: Any
    evaluate: Callable[..., jax.Array]
    gradients: Callable[..., tuple[jax.Array, Any]]
    state: Any
    rows: Sharding
