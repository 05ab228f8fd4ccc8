"""A mixture of experts in JAX: router, experts, and the shared expert beside them; the torch module's twin.

Shapes: B sequences, S tokens of each, T tokens, D embed, X experts, k experts a token, C places at an expert,
F expert_ffn. What divides experts over ranks is in the hook that brings tokens to them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from planc.backends.xla.models.llama import build_feed_forward
from planc.ir.model import Routing

if TYPE_CHECKING:
    from planc.backends.xla.models.hooks import Hooks
    from planc.backends.xla.models.llama import Half, Params
    from planc.ir.model import Model, Section

MODULE = "layers.*.moe"
ROUTER = f"{MODULE}.router.weight"
GATE, UP, DOWN = (f"{MODULE}.experts.{letters}.weight" for letters in ("w1", "w3", "w2"))


def routed(model: Model, kind: Section) -> bool:
    """Whether blocks of this kind have experts."""
    return any(op.kind == "route" for op in model.ops[kind])


def build_moe(model: Model, hooks: Hooks) -> Half:
    """`moe(x [B, S, D], one layer's params)` -> [B, S, D]: each token's k experts, weighted, and the shared one."""
    shared = build_feed_forward(hooks, f"{MODULE}.shared", "shared") if "shared_ffn" in model.sizes else None

    def route(scores: jax.Array) -> tuple[jax.Array, jax.Array]:
        return picks(scores.astype(jnp.float32), model.top_k, model.routing)

    def mlp(rows: jax.Array, weights: jax.Array, params: Params) -> jax.Array:
        """Rows [X, C, D] and their weights [X, C], of as many experts as `params` has."""
        gate = hooks.named("moe.gate", jnp.einsum("xcd,xfd->xcf", rows, params[GATE]))
        up = hooks.named("moe.up", jnp.einsum("xcd,xfd->xcf", rows, params[UP]))
        # The weights multiply where the rows are narrow, and the outputs need not be kept for their gradient.
        mid = hooks.named("moe.mid", jax.nn.silu(gate) * up * weights[..., None].astype(rows.dtype))
        return jnp.einsum("xcf,xdf->xcd", mid, params[DOWN])

    def moe(x: jax.Array, layer: Params) -> jax.Array:
        scores = hooks.constrain("moe.scores", hooks.linear(ROUTER, x, layer[ROUTER]))
        params = {name: layer[name] for name in (GATE, UP, DOWN)}
        out = hooks.constrain("moe.out", hooks.experts(route, mlp, x, scores, params))
        return out if shared is None else hooks.constrain("ffn.out", out + shared(x, layer))

    return moe


def picks(logits: jax.Array, k: int, routing: Routing) -> tuple[jax.Array, jax.Array]:
    """Logits [T, X] in fp32 to the weights and the numbers of each token's experts, [T, k] each.

    Of equal scores the lower number is picked first, as in the torch module.
    """
    scores = jax.nn.sigmoid(logits) if routing.scores == "sigmoid" else jax.nn.softmax(logits)
    chosen = jax.lax.top_k(jax.lax.stop_gradient(_limited(scores, routing) if routing.groups > 1 else scores), k)[1]
    weights = jnp.take_along_axis(scores, chosen, axis=-1)
    if routing.normed:
        weights = weights / weights.sum(-1, keepdims=True)
    return weights * routing.scale, chosen


def _limited(scores: jax.Array, routing: Routing) -> jax.Array:
    """Scores to pick by: none but in a token's best groups.

    A group is as good as its best expert, with sigmoid scores as its best two together (DeepSeek-V3).
    """
    groups = scores.reshape(*scores.shape[:-1], routing.groups, -1)
    best = jax.lax.top_k(groups, min(2, groups.shape[-1]) if routing.scores == "sigmoid" else 1)[0].sum(-1)
    kept = jax.nn.one_hot(jax.lax.top_k(best, routing.groups_kept)[1], routing.groups).sum(-2)
    return jnp.where(kept[..., None] == 0, -jnp.inf, groups).reshape(scores.shape)
