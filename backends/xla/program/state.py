"""The optimizer of a program, and the layout of its state."""

from __future__ import annotations

from typing import Any

import jax
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from planc.backends.xla.program.facts import FACTS
from planc.backends.xla.program.names import (
    NOT_DECAYED,
    OPTIMIZER,
    OPTIMIZER_MEMORY,
    PARAMS_MEMORY,
    _pattern,
    shardings,
)
from planc.backends.xla.program.narrow_state import narrow
from planc.backends.xla.program.offload import _resting


def adamw(
    betas: tuple[float, float] = (0.9, 0.95), eps: float = 1e-8, weight_decay: float = 0.1
) -> optax.GradientTransformation:
    """AdamW with decoupled decay, without the learning rate, which is an argument of the step."""
    if FACTS.narrow_state:
        return narrow(
            optax.chain(
                optax.scale_by_adam(*betas, eps=eps),
                optax.add_decayed_weights(weight_decay, mask=_decayed),
            )
        )
    return optax.chain(
        optax.scale_by_adam(*betas, eps=eps),
        optax.add_decayed_weights(weight_decay, mask=_decayed),
    )


def _decayed(params: Any) -> Any:
    return jax.tree_util.tree_map_with_path(
        lambda path, _: _pattern(jax.tree_util.keystr(path, simple=True, separator=".")) not in NOT_DECAYED,
        params,
    )


def state_shardings(mesh: Mesh, params: Any, optimizer: optax.GradientTransformation) -> Any:
    """A NamedSharding for every leaf of the state, for parameters or their shapes."""
    resting = (
        _resting(shardings(mesh, params, OPTIMIZER), OPTIMIZER_MEMORY)
        if FACTS.optimizer_on_host
        else shardings(mesh, params, OPTIMIZER)
    )
    stored = _resting(shardings(mesh, params), PARAMS_MEMORY) if FACTS.params_on_host else shardings(mesh, params)
    moments = optax.tree_map_params(
        optimizer,
        lambda moment, where: jax.tree.map(lambda _: where, moment),
        jax.eval_shape(optimizer.init, params),
        resting,
        transform_non_params=lambda _: NamedSharding(mesh, P()),
        is_leaf=lambda moment: isinstance(moment, optax.MaskedNode),  # a parameter without this moment
    )
    return {"params": stored, "optimizer": moments}


def init_state(params: Any, optimizer: optax.GradientTransformation, mesh: Mesh) -> Any:
    """Sharded parameters, and the optimizer's initial state in its layout."""
    where = state_shardings(mesh, params, optimizer)
    params = jax.device_put(params, where["params"])
    return {
        "params": params,
        "optimizer": jax.jit(optimizer.init, out_shardings=where["optimizer"])(params),
    }
