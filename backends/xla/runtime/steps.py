"""The functions of a program under training on JAX."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jax
    from jax.sharding import Sharding


@dataclass(frozen=True)
class Steps:
    """Jitted functions over {"params", "optimizer"}, and where their arguments rest."""

    step: Any
    evaluate: Callable[..., jax.Array]
    gradients: Callable[..., tuple[jax.Array, Any]]
    state: Any
    rows: Sharding
