"""A mixture of experts in JAX: router, experts, and the shared expert beside them; the torch module's twin.

Shapes: B sequences, S tokens of each, T tokens, D embed, X experts, k experts a token, C places at an expert,
R rows of a rank's experts, F expert_ffn. What divides experts over ranks is in the hook that brings tokens to them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import jax
import jax.numpy as jnp

from planc.backends.xla.models import llama
from planc.backends.xla.models.balance import balanced
from planc.ir.model import Routing

if TYPE_CHECKING:
    from planc.backends.xla.models.hooks import Hooks, Total
    from planc.backends.xla.models.llama import Block, Half, Logits, Params
    from planc.ir.model import Model, Section

Carry = tuple[jax.Array, jax.Array]
"""Hidden states [B, S, E], and how often experts were picked so far, [routed layers, ranks, X]."""
BlockWithPicks = Callable[[Carry, "Params"], Carry]
MakeBlock = Callable[["Model", "Hooks", "Section", float], BlockWithPicks]
LossWithPicks = Callable[["Params", jax.Array, jax.Array], tuple[jax.Array, jax.Array]]

MODULE = "layers.*.moe"
ROUTER = f"{MODULE}.router.weight"
GATE, UP, DOWN = (f"{MODULE}.experts.{letters}.weight" for letters in ("w1", "w3", "w2"))


def routed(model: Model, kind: Section) -> bool:
    """True if blocks of this `kind` have experts in `model`."""
    return any(op.kind == "route" for op in model.ops[kind])


class BuildLoss(Protocol):
    """`build_loss` of a family with experts."""

    def __call__(self, model: Model, hooks: Hooks, balance: float = 0.0) -> LossWithPicks: ...


def builders(block: MakeBlock) -> tuple[BuildLoss, Callable[[Model, Hooks], Logits]]:
    """`build_loss` and `build_logits` of the family whose blocks `block` makes."""

    def build_loss(model: Model, hooks: Hooks, balance: float = 0.0) -> LossWithPicks:
        """`loss(params, tokens [B, S], targets [B, S])`: the mean cross entropy per token, fp32, and how often each
        expert was picked, [routed layers, ranks, X]. `balance` is the coefficient of the load-balancing loss."""
        through = build_logits_with_picks(model, hooks, block, balance)

        def loss(params: Params, tokens: jax.Array, targets: jax.Array) -> tuple[jax.Array, jax.Array]:
            logits, picked = through(params, tokens)
            return llama.cross_entropy(logits, targets), picked

        return loss

    def build_logits(model: Model, hooks: Hooks) -> Logits:
        """`logits(params, tokens [B, S])` -> [B, S, V]."""
        through = build_logits_with_picks(model, hooks, block, 0.0)
        return lambda params, tokens: through(params, tokens)[0]

    return build_loss, build_logits


def build_logits_with_picks(
    model: Model, hooks: Hooks, block: MakeBlock, balance: float
) -> Callable[[Params, jax.Array], tuple[jax.Array, jax.Array]]:
    """Logits and picks of params and tokens. `block` makes the blocks of a kind, which hand the picks on."""
    blocks = {kind: block(model, hooks, kind, balance) for kind in model.blocks}
    layers = sum(routed(model, kind) for kind in model.kinds)

    def through(params: Params, tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
        carry = llama.embedded(hooks, params, tokens), hooks.unpicked(layers, model.sizes["experts"])
        for kind, stack in llama.stacks(model, params):
            carry = hooks.layers(blocks[kind], carry, stack)
        return llama.headed(model, hooks, params, carry[0]), carry[1]

    return through


def dense(block: Block) -> BlockWithPicks:
    """A block without experts between those that have some."""
    return lambda carry, layer: (block(carry[0], layer), carry[1])


def build_block(model: Model, hooks: Hooks, attention: Half, balance: float) -> BlockWithPicks:
    """`block((x [B, S, E], picks so far), one layer's params)`: a block with experts in its second half."""
    halfway, moe = llama.build_halfway(model, hooks, attention), build_moe(model, hooks, balance)

    def block(carry: Carry, layer: Params) -> Carry:
        x, inner = halfway(carry[0], layer)
        out, picked = moe(inner, layer)
        return hooks.constrain("hidden", x + out), jnp.concatenate((carry[1][1:], picked[None]))

    return block


def build_moe(model: Model, hooks: Hooks, balance: float) -> Callable[[jax.Array, Params], tuple[jax.Array, jax.Array]]:
    """`moe(x [B, S, D], one layer's params)`: each token's k experts, weighted, and the shared one, [B, S, D]; and
    how often each expert was picked, [ranks, X]."""
    shared = llama.build_feed_forward(hooks, f"{MODULE}.shared", "shared") if "shared_ffn" in model.sizes else None

    def route(scores: jax.Array, total: Total, sequences: int) -> tuple[jax.Array, jax.Array]:
        logits = scores.astype(jnp.float32)
        if balance:
            chosen = picks(jax.lax.stop_gradient(logits), model.top_k, model.routing)[1]
            logits = balanced(logits, chosen, model.routing, balance / sequences, total)
        weights, chosen = picks(logits, model.top_k, model.routing)
        return weights.reshape(-1, model.top_k), chosen.reshape(-1, model.top_k)

    def mlp(rows: jax.Array, weights: jax.Array, params: Params, counts: jax.Array | None = None) -> jax.Array:
        """Rows [X, C, D] and their weights [X, C], of as many experts as `params` has; or rows [R, D] of one expert
        after the other and weights [R], with `counts` [X] of them."""

        def times(rows: jax.Array, w: jax.Array) -> jax.Array:
            if counts is None:
                return jnp.einsum("xci,xoi->xco", rows, w)
            return jax.lax.ragged_dot(rows, jnp.swapaxes(w, 1, 2), counts)

        gate = hooks.named("moe.gate", times(rows, params[GATE]))
        up = hooks.named("moe.up", times(rows, params[UP]))
        # The weights multiply where the rows are narrow, and the outputs need not be kept for their gradient.
        mid = hooks.named("moe.mid", jax.nn.silu(gate) * up * weights[..., None].astype(rows.dtype))
        return times(mid, params[DOWN])

    def moe(x: jax.Array, layer: Params) -> tuple[jax.Array, jax.Array]:
        scores = hooks.constrain("moe.scores", hooks.linear(ROUTER, x, layer[ROUTER]))
        params = {name: layer[name] for name in (GATE, UP, DOWN)}
        out, picked = hooks.experts(route, mlp, x, scores, params)
        out = hooks.constrain("moe.out", out)
        return out if shared is None else hooks.constrain("ffn.out", out + shared(x, layer)), picked

    return moe


def picks(logits: jax.Array, k: int, routing: Routing) -> tuple[jax.Array, jax.Array]:
    """The weights and the numbers of each token's `k` experts, [..., k] each, from `logits` [..., X] in fp32.

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
