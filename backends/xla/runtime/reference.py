"""Trains on one device without a plan: the reference for every layout.

Independent of the emitted code on purpose: no optax, no microbatches, no recompute.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from planc.backends.common.sequence_order import held_order
from planc.backends.xla.analysis.state_dtypes import narrow_state
from planc.backends.xla.models import loss_of
from planc.backends.xla.models.hooks import UNDIVIDED, Hooks, Undivided
from planc.backends.xla.runtime.narrow_reference import multiplying_narrow
from planc.backends.xla.runtime.optimizer import updates_of
from planc.backends.xla.runtime.shards import DTYPES
from planc.ir.model import Model
from planc.ir.plan import NOUNS, Noun, Plan

if TYPE_CHECKING:
    from planc.ir.session import Settings

Tree = dict[str, jax.Array]
Loss = Callable[[Tree, jax.Array, jax.Array], jax.Array]


@dataclass(frozen=True)
class Rounding:
    """The stored dtypes of state, and the split of a batch into microbatches, whose gradients are rounded and
    accumulated. The split also determines which tokens share a scale in quantized matmuls."""

    dtypes: dict[Noun, Any]
    ranks: int
    """Ranks that shard the batch."""
    sequences: int
    """Sequences per rank in a microbatch."""
    at_once: bool = False
    """True if gradients are rounded once, after all microbatches."""

    def microbatches(self, rows: jax.Array) -> list[jax.Array]:
        """Return the rows of each microbatch: the first sequences of every rank in `rows`, then the next ones."""
        of_ranks = rows.reshape(self.ranks, -1, rows.shape[-1])
        begins = range(0, of_ranks.shape[1], self.sequences)
        return [of_ranks[:, at : at + self.sequences].reshape(-1, rows.shape[-1]) for at in begins]

    def rounded(self, noun: Noun, tree: Any) -> Any:
        """Return the arrays of `tree` rounded to the stored dtype of `noun`."""
        return _in_dtype(tree, self.dtypes[noun])


def rounding_of(plan: Plan) -> Rounding | None:
    """Return the rounding of state and the split into microbatches in `plan`; None if neither affects the results."""
    if not (narrow_state(plan) or plan.quantize):
        return None
    dtypes = {noun: DTYPES[plan.store_dtype(noun)] for noun in NOUNS}
    at_once = plan.split is not None and plan.pipeline > 1
    whole = at_once and not plan.quantize
    each = plan.batch.sequences // plan.data_parallel if whole else plan.batch.microbatch_sequences
    return Rounding(dtypes, plan.data_parallel, each, at_once)


def _in_dtype(tree: Any, dtype: Any) -> Any:
    """Return `tree` with its floating-point arrays cast to `dtype`; counters are unchanged."""
    return jax.tree.map(lambda x: x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x, tree)


def _wide(tree: Any) -> Any:
    return _in_dtype(tree, jnp.float32)


@dataclass(frozen=True)
class Single:
    """The reference: the step of a model on one device, with the state {"params", "optimizer": {"m", "v", "steps"}}."""

    model: Model
    settings: Settings
    hooks: Hooks = UNDIVIDED
    rounding: Rounding | None = None

    def loss(self, params: Tree, tokens: jax.Array, targets: jax.Array) -> jax.Array:
        """Return the mean loss (nats) of `tokens` against `targets`, both [sequences, sequence_tokens]."""
        parts = [self._loss_with_picks(_wide(params), *batch)[0] for batch in self._batches(tokens, targets)]
        return jnp.mean(jnp.stack(parts))

    def gradients(self, params: Tree, tokens: jax.Array, targets: jax.Array) -> tuple[jax.Array, Tree]:
        """Return the loss as in `loss`, and its gradients, a tree like `params`."""
        loss, _, grads = self._gradients_with_picks(params, tokens, targets)
        return loss, grads

    def _gradients_with_picks(
        self, params: Tree, tokens: jax.Array, targets: jax.Array
    ) -> tuple[jax.Array, dict[str, jax.Array], Tree]:
        """Return loss, expert counts and gradients; computed by microbatch if gradients are rounded in between."""
        found = jax.value_and_grad(self._loss_with_picks, has_aux=True)
        if self.rounding is None:
            (loss, picks), grads = found(params, tokens, targets)
            return loss, picks, grads
        parts = [found(_wide(params), *batch) for batch in self._batches(tokens, targets)]
        rounded = _wide if self.rounding.at_once else partial(self.rounding.rounded, "grads")
        total = rounded(parts[0][1])
        for _, grads in parts[1:]:
            total = rounded({name: total[name] + g for name, g in grads.items()})
        total = self.rounding.rounded("grads", total)
        loss = sum(loss for (loss, _), _ in parts) / len(parts)
        picks = {name: sum(found[name] for (_, found), _ in parts) for name in parts[0][0][1]}
        return loss, picks, {name: g / len(parts) for name, g in total.items()}

    def _batches(self, tokens: jax.Array, targets: jax.Array) -> list[tuple[jax.Array, jax.Array]]:
        """Return the tokens and targets of each microbatch; one whole batch if the split does not matter."""
        if self.rounding is None:
            return [(tokens, targets)]
        return list(zip(*map(self.rounding.microbatches, (tokens, targets)), strict=True))

    def _loss_with_picks(
        self, params: Tree, tokens: jax.Array, targets: jax.Array
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Return the loss, and as "picks" the expert counts of each layer with experts, [layers, X]."""
        with jax.default_matmul_precision("highest"):
            found = loss_of(self.model, self.hooks, self.settings)(params, tokens, targets)
        return (found[0], {"picks": found[1].sum(1)}) if self.model.top_k else (found, {})

    def init(self, params: Tree) -> dict[str, Any]:
        """Return the state before the first step: `params` and the optimizer's zeros."""
        if (other := self._optax_optimizer()) is not None:
            return {"params": params, "optimizer": self._rounded("optimizer", other.init(params))}
        zeros = jax.tree.map(jnp.zeros_like, self._rounded("optimizer", params))
        moments = {"m": zeros, "v": jax.tree.map(jnp.copy, zeros), "steps": jnp.int32(0)}
        return {"params": params, "optimizer": moments}

    def step(self, state: dict[str, Any], tokens: jax.Array, targets: jax.Array, lr: jax.Array) -> Any:
        """Return the `state` after an update with learning rate `lr`, and loss and gradient norm before the update."""
        loss, picks, grads = self._gradients_with_picks(state["params"], tokens, targets)
        grads = _wide(grads)
        norm = jnp.sqrt(sum(jnp.vdot(g, g) for g in grads.values()))
        if self.settings.clip_norm:
            scale = jnp.minimum(1.0, self.settings.clip_norm / (norm + 1e-6))
            grads = {name: g * scale for name, g in grads.items()}
        return self._updated(state, grads, lr), {"loss": loss, "grad_norm": norm, **picks}

    def _optax_optimizer(self) -> Any:
        """Return the optax optimizer; None for plain AdamW, which `_adamw` implements."""
        if self.settings.optimizer == "adamw" and not self.settings.decay_groups:
            return None
        return updates_of(self.model, self.settings)

    def _rounded(self, noun: Noun, tree: Any) -> Any:
        return tree if self.rounding is None else self.rounding.rounded(noun, tree)

    def _updated(self, state: dict[str, Any], grads: Tree, lr: jax.Array) -> dict[str, Any]:
        if (other := self._optax_optimizer()) is None:
            return self._adamw(state, grads, lr)
        wide = _wide(state["params"])
        updates, moments = other.update(grads, _wide(state["optimizer"]), wide)
        params = {name: w - lr * updates[name] for name, w in wide.items()}
        return {"params": self._rounded("params", params), "optimizer": self._rounded("optimizer", moments)}

    def _adamw(self, state: dict[str, Any], grads: Tree, lr: jax.Array) -> dict[str, Any]:
        first, second = self.settings.betas
        old, params = state["optimizer"], _wide(state["params"])
        steps = old["steps"] + 1
        m, v = (_wide(old[name]) for name in "mv")
        m = {name: first * m[name] + (1 - first) * g for name, g in grads.items()}
        v = {name: second * v[name] + (1 - second) * g * g for name, g in grads.items()}

        def updated(name: str, w: jax.Array) -> jax.Array:
            root = jnp.sqrt(v[name] / (1 - second**steps)) + self.settings.eps
            decay = self.settings.weight_decay if self.model.param[name].decay else 0.0
            new: jax.Array = w - lr * (m[name] / (1 - first**steps) / root + decay * w)
            return new

        moved = {name: updated(name, w) for name, w in params.items()}
        kept = {"m": self._rounded("optimizer", m), "v": self._rounded("optimizer", v), "steps": steps}
        return {"params": self._rounded("params", moved), "optimizer": kept}


class Limited(Undivided):
    """Hooks for experts with a capacity: an expert drops tokens beyond its slots, by rank and microbatch."""

    def __init__(self, plan: Plan) -> None:
        self.factor = plan.route.factor
        self.sequences = plan.batch.microbatch_sequences
        self.shares = plan.mesh.size(*plan.axes_of("sequence", "residual"))
        self.order = jnp.array(held_order(plan))

    def _weights_within_capacity(
        self, chosen: jax.Array, shape: tuple[int, ...], weights: jax.Array, experts: int
    ) -> jax.Array:
        batch, length, _ = shape
        cut = (batch // self.sequences, self.sequences, self.shares, length // self.shares)
        mine = jax.nn.one_hot(chosen, experts, dtype=jnp.int32)  # [T, k, X]
        mine = mine.reshape(batch, length, *mine.shape[1:])[:, self.order]
        mine = jnp.moveaxis(mine.reshape(*cut, *mine.shape[2:]), 2, 1)
        inside = mine.reshape(*mine.shape[:2], -1, experts)  # [microbatch, share, T * k of it, X]
        places = ceil(inside.shape[2] * self.factor / experts)
        kept = jnp.sum((jnp.cumsum(inside, axis=2) <= places) * inside, axis=-1)
        kept = jnp.moveaxis(kept.reshape(mine.shape[:-1]), 1, 2).reshape(batch, length, -1)
        return weights * kept[:, jnp.argsort(self.order)].reshape(weights.shape)


def hooks_of(plan: Plan) -> Hooks:
    """Return hooks that run the model of `plan` on one device, with its expert capacity and quantized matmuls."""
    hooks = Limited(plan) if plan.model.top_k and plan.route.method == "capacity" else UNDIVIDED
    return multiplying_narrow(hooks, plan) if plan.quantize else hooks
