"""The preset's optimizer in optax, if it is not the AdamW of the emitted file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec

from planc.ir.updates import (
    NEWTON_SCHULZ,
    NEWTON_SCHULZ_STEPS,
    NORM_EPS,
    decay_of,
    is_orthogonalised,
    scale_of,
)

if TYPE_CHECKING:
    from types import ModuleType

    from planc.ir.model import Model
    from planc.ir.session import Settings


class MuonState(NamedTuple):
    """Optimizer state of Muon; `mu` is the momentum, named as AdamW's first moment."""

    mu: Any


def optimizer_of(model: Model, settings: Settings, emitted: ModuleType) -> optax.GradientTransformation:
    """Return the optimizer of `settings` for `model`, without a learning rate, which is an argument of the step.

    It is that of the module `emitted` for AdamW with one weight decay, and that of `updates_of` for all else.
    """
    found: optax.GradientTransformation
    if settings.optimizer == "adamw" and not settings.decay_groups:
        found = emitted.adamw(settings.betas, settings.eps, settings.weight_decay)
        return found
    stages = emitted.MESH[emitted.STACK[-1]] if hasattr(emitted, "STACK") else 1
    found = updates_of(model, settings, stages)
    return emitted.narrow(found) if hasattr(emitted, "narrow") else found


def updates_of(model: Model, settings: Settings, stages: int = 1) -> optax.GradientTransformation:
    """Return the optimizer with weight decay per parameter: Muon for the matrices of `model` if `settings` ask for
    Muon, and AdamW for all else. `stages` is the number of pipeline ranks."""

    def label(path: Any, _: Any) -> str:
        return "muon" if settings.optimizer == "muon" and is_orthogonalised(model, _name(path)) else "adamw"

    both = {
        "adamw": optax.scale_by_adam(*settings.betas, eps=settings.eps),
        "muon": scale_by_muon(model, settings.momentum, stages),
    }
    return optax.chain(
        optax.partition(both, lambda params: jax.tree_util.tree_map_with_path(label, params)),
        _add_decay(model, settings),
    )


def scale_by_muon(model: Model, momentum: float, stages: int) -> optax.GradientTransformation:
    """Return Muon: the orthogonalized Nesterov momentum (coefficient `momentum`), times a scale that depends on the
    shape of each parameter of `model`.

    A leaf is [..., rows, columns], padded with zeros if its shards are uneven. In a pipeline with `stages` ranks, these
    ranks shard each stack of layers.
    """

    def update_of(path: Any, ahead: jax.Array) -> jax.Array:
        *leading, rows, columns = model.shape(model.param[_name(path)])
        stacked = ahead.ndim - len(leading) - 2
        if not stacked:
            return orthogonal(ahead) * scale_of(rows, columns)
        # One layer per stage at a time: full matrices of all layers would be the whole model on each device.
        *chunks, layers = ahead.shape[:stacked]
        split = ahead.reshape(*chunks, stages, layers // stages, *ahead.shape[stacked:])
        made = jax.lax.map(orthogonal, jnp.moveaxis(split, stacked, 0))
        return jnp.moveaxis(made, 0, stacked).reshape(ahead.shape) * scale_of(rows, columns)

    def init(params: Any) -> MuonState:
        return MuonState(jax.tree.map(jnp.zeros_like, params))

    def update(grads: Any, state: MuonState, params: Any = None) -> tuple[Any, MuonState]:
        mu = jax.tree.map(lambda m, g: momentum * m + (1 - momentum) * g, state.mu, grads)
        ahead = jax.tree.map(lambda m, g: momentum * m + (1 - momentum) * g, mu, grads)
        return jax.tree_util.tree_map_with_path(update_of, ahead), MuonState(mu)

    return optax.GradientTransformation(init, update)


def orthogonal(matrices: jax.Array) -> jax.Array:
    """Return `matrices` [..., rows, columns] orthogonalized: approximately U V^T of their singular vectors, in fp32.

    Newton-Schulz iteration of Jordan and others 2024; see `planc.ir.updates`.
    """
    a, b, c = NEWTON_SCHULZ
    wide = matrices.shape[-2] <= matrices.shape[-1]
    x = _whole(matrices if wide else matrices.mT).astype(jnp.float32)
    x = x / (jnp.linalg.norm(x, axis=(-2, -1), keepdims=True) + NORM_EPS)
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = x @ x.mT
        x = _whole(a * x + (b * gram + c * gram @ gram) @ x)
    whole: jax.Array = x if wide else x.mT
    return whole


def _whole(matrices: jax.Array) -> jax.Array:
    """Return `matrices` [..., rows, columns], all-gathered over the mesh one dim at a time.

    The iteration gathers its input and the result of each step: otherwise XLA communicates in each of its matmuls.
    """
    if jax.sharding.get_abstract_mesh().empty:
        return matrices
    free = PartitionSpec.UNCONSTRAINED
    for rows in (free, None):  # the columns first, of which there are more
        where = PartitionSpec(*[free] * (matrices.ndim - 2), rows, None)  # type: ignore[no-untyped-call]
        matrices = jax.lax.with_sharding_constraint(matrices, where)  # type: ignore[no-untyped-call]
    return matrices


def _add_decay(model: Model, settings: Settings) -> optax.GradientTransformation:
    """Return a transformation that adds decoupled weight decay (u + decay p), with each parameter's coefficient."""

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        def one(path: Any, u: jax.Array, p: jax.Array) -> jax.Array:
            return u + decay_of(model, settings, _name(path)) * p

        return jax.tree_util.tree_map_with_path(one, updates, params), state

    return optax.GradientTransformation(lambda _params: optax.EmptyState(), update)


def _name(path: Any) -> str:
    return str(getattr(path[-1], "key", path[-1]))
