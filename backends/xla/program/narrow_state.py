"""State in other dtypes than fp32."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from planc.backends.xla.program.names import OPTIMIZER_DTYPE


def narrow(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """An optimizer that computes in fp32 and stores its state in OPTIMIZER_DTYPE."""

    def init(params: Any) -> Any:
        return _in_dtype(optimizer.init(_wide(params)), OPTIMIZER_DTYPE)

    def update(grads: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        updates, moments = optimizer.update(grads, _wide(state), params)
        return updates, _in_dtype(moments, OPTIMIZER_DTYPE)

    return optax.GradientTransformation(init, update)


def _wide(tree: Any) -> Any:
    """State cast to fp32, for computing."""
    return _in_dtype(tree, jnp.float32)


def _in_dtype(tree: Any, dtype: Any) -> Any:
    """The tree cast to another dtype, rounded to nearest; counters stay integers."""
    return jax.tree.map(lambda x: x.astype({"i": x.dtype}.get(x.dtype.kind, dtype)), tree)
