"""A mixture of experts in JAX: router, experts, and an optional shared expert; the torch module's twin.

Shapes: B sequences, S tokens per sequence, T tokens, D embed, X experts, k experts per token, C slots per expert, R
rows of a rank's experts, F expert_ffn. The hook `experts` does all routing across ranks.
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
    from planc.backends.xla.models.hooks import Hooks, Product, Total
    from planc.backends.xla.models.llama import Block, Half, Logits, Params
    from planc.ir.model import Model, Section

Carry = tuple[jax.Array, jax.Array]
"""Hidden states [B, S, E], and the expert counts so far, [routed layers, ranks, X]."""
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
    """The type of `build_loss` of a family with experts."""

    def __call__(self, model: Model, hooks: Hooks, balance: float = 0.0) -> LossWithPicks: ...


def each(rows: jax.Array, w: jax.Array) -> jax.Array:
    """Return rows [X, C, in] times each expert's w [X, out, in]: [X, C, out]."""
    return jnp.einsum("xci,xoi->xco", rows, w)


def builders(block: MakeBlock) -> tuple[BuildLoss, Callable[[Model, Hooks], Logits]]:
    """Return `build_loss` and `build_logits` of the family whose blocks `block` builds."""

    def build_loss(model: Model, hooks: Hooks, balance: float = 0.0) -> LossWithPicks:
        """Return `loss(params, tokens [B, S], targets [B, S])` -> (mean cross entropy per token in fp32, expert counts
        [routed layers, ranks, X]). `balance` is the coefficient of the load-balancing loss."""
        through = build_hidden_with_picks(model, hooks, block, balance)

        def loss(params: Params, tokens: jax.Array, targets: jax.Array) -> tuple[jax.Array, jax.Array]:
            hidden, picked = through(params, tokens)
            return llama.loss_of(model, hooks, params, hidden, targets), picked

        return loss

    def build_logits(model: Model, hooks: Hooks) -> Logits:
        """Return `logits(params, tokens [B, S])` -> [B, S, V]."""
        through = build_hidden_with_picks(model, hooks, block, 0.0)
        return lambda params, tokens: llama.headed(model, hooks, params, through(params, tokens)[0])

    return build_loss, build_logits


def build_hidden_with_picks(
    model: Model, hooks: Hooks, block: MakeBlock, balance: float
) -> Callable[[Params, jax.Array], tuple[jax.Array, jax.Array]]:
    """Return a function from params and tokens to hidden states and expert counts. `block` builds a block of a
    kind."""
    blocks = {kind: block(model, hooks, kind, balance) for kind in model.blocks}
    layers = sum(routed(model, kind) for kind in model.kinds)

    def through(params: Params, tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
        carry = llama.embedded(hooks, params, tokens), hooks.unpicked(layers, model.sizes["experts"])
        for kind, stack in llama.stacks(model, params):
            carry = hooks.layers(blocks[kind], carry, stack)
        return carry

    return through


def dense(block: Block) -> BlockWithPicks:
    """Return `block`, which has no experts, as a block that passes expert counts on, for a model with both kinds."""
    return lambda carry, layer: (block(carry[0], layer), carry[1])


def build_block(model: Model, hooks: Hooks, attention: Half, balance: float) -> BlockWithPicks:
    """Return `block((x [B, S, E], expert counts), one layer's params)`, a block with experts in its second half."""
    halfway, moe = llama.build_halfway(model, hooks, attention), build_moe(model, hooks, balance)

    def block(carry: Carry, layer: Params) -> Carry:
        x, inner = halfway(carry[0], layer)
        out, picked = moe(inner, layer)
        return hooks.constrain("hidden", x + out), jnp.concatenate((carry[1][1:], picked[None]))

    return block


def build_moe(model: Model, hooks: Hooks, balance: float) -> Callable[[jax.Array, Params], tuple[jax.Array, jax.Array]]:
    """Return `moe(x [B, S, D], one layer's params)` -> (weighted sum of each token's k experts and the shared one [B,
    S, D], expert counts [ranks, X])."""
    shared = llama.build_feed_forward(hooks, f"{MODULE}.shared", "shared") if "shared_ffn" in model.sizes else None

    def route(scores: jax.Array, total: Total, sequences: int) -> tuple[jax.Array, jax.Array]:
        logits = scores.astype(jnp.float32)
        if balance:
            chosen = picks(jax.lax.stop_gradient(logits), model.top_k, model.routing)[1]
            logits = balanced(logits, chosen, model.routing, balance / sequences, total)
        weights, chosen = picks(logits, model.top_k, model.routing)
        return weights.reshape(-1, model.top_k), chosen.reshape(-1, model.top_k)

    def mlp(rows: jax.Array, weights: jax.Array, params: Params, times: Product = each) -> jax.Array:
        """Run the experts on rows [X, C, D] with weights [X, C]; or on rows [R, D] sorted by expert with weights [R],
        which `times` multiplies by their experts' parameters."""
        gate = hooks.named("moe.gate", times(rows, params[GATE]))
        up = hooks.named("moe.up", times(rows, params[UP]))
        # Router weights multiply the smaller activations, so the outputs need not be saved for their gradient.
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
    """Return the weights and the indices of each token's `k` experts, [..., k] each, from `logits` [..., X] in fp32.

    Ties go to the lower index, as in the torch module.
    """
    scores = jax.nn.sigmoid(logits) if routing.scores == "sigmoid" else jax.nn.softmax(logits)
    chosen = jax.lax.top_k(jax.lax.stop_gradient(_limited(scores, routing) if routing.groups > 1 else scores), k)[1]
    weights = jnp.take_along_axis(scores, chosen, axis=-1)
    if routing.normed:
        weights = weights / weights.sum(-1, keepdims=True)
    return weights * routing.scale, chosen


def _limited(scores: jax.Array, routing: Routing) -> jax.Array:
    """Return scores for group-limited routing: -inf for experts outside a token's best groups of experts.

    A group is ranked by its best expert, or with sigmoid scores by the sum of its best two (DeepSeek-V3).
    """
    groups = scores.reshape(*scores.shape[:-1], routing.groups, -1)
    best = jax.lax.top_k(groups, min(2, groups.shape[-1]) if routing.scores == "sigmoid" else 1)[0].sum(-1)
    kept = jax.nn.one_hot(jax.lax.top_k(best, routing.groups_kept)[1], routing.groups).sum(-2)
    return jnp.where(kept[..., None] == 0, -jnp.inf, groups).reshape(scores.shape)
