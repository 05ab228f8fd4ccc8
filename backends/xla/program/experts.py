"""Experts: each rank routes its tokens to experts, sends the ranks of these what they need, and takes back outputs.

All of it is per-rank code in a shard_map: XLA infers no collective. With a capacity, tokens take slots of the experts.
Without, each rank sorts its tokens' copies by expert and sends each rank the rows for its experts, in buffers for the
most rows possible; the receiver sorts the rows of all senders by expert and multiplies them by the weights in one
grouped matmul (`jax.lax.ragged_dot`). libtpu 0.0.42 has a kernel for that one and for the rows' gradient, but multiplies
all rows by every expert for the weights' gradient: on TPUs megablox's kernel computes it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.experimental.pallas.ops.tpu.megablox.gmm import tgmm
from jax.lax import with_sharding_constraint
from jax.sharding import PartitionSpec as P

from planc.backends.xla.program.facts import FACTS
from planc.backends.xla.program.names import (
    ACTIVATIONS,
    COMPUTE,
    EXPERTS,
    EXPERTS_GATHERED,
    EXPERTS_REPEATED,
    EXPERTS_TOKENS,
    MESH,
    MICROBATCH,
    _pattern,
)


def named(name: str, x: jax.Array) -> jax.Array:
    """The activation `name` inside `experts`, in the compute dtypeFACTS.of_names."""
    return checkpoint_name(x.astype(COMPUTE), name) if FACTS.names_activations else x.astype(COMPUTE)


def experts(
    route: Callable[..., tuple[jax.Array, jax.Array]],
    mlp: Callable[..., jax.Array],
    x: jax.Array,
    scores: jax.Array,
    params: dict[str, jax.Array],
) -> tuple[jax.Array, jax.Array]:
    """Weighted sum of each token's experts for x [B, S, D], [B, S, D], and expert counts [ranks, X].

    `route(scores [B, S, X], total, sequences)` gives the weights and indices of each token's experts, [T, k]
    each; `total` sums counts over the ranks with other parts of the same sequences, and `sequences` is the
    number in the mean of the loss.
    FACTS.of_mlp
    """
    if FACTS.stages and not FACTS.expert_axes:
        return _served(route, mlp, x, scores, params)
    tokens = ACTIVATIONS[FACTS.combined]
    where = {name: EXPERTS[_pattern(name)] for name in params}
    served = functools.partial(_served, route, mlp)
    given, answers = (tokens, tokens, where), (tokens, P(EXPERTS_TOKENS, None))
    if FACTS.stages:
        axes = {*FACTS.expert_axes}
        mapped = jax.shard_map(served, in_specs=given, out_specs=answers, axis_names=axes, check_vma=False)
    elif FACTS.kernel:
        mapped = jax.shard_map(served, in_specs=given, out_specs=answers, axis_names=set(MESH), check_vma=False)
    else:
        mapped = jax.shard_map(served, in_specs=given, out_specs=answers, axis_names=set(MESH))
    return mapped(x, scores, params)


def unpicked(layers: int, experts: int) -> jax.Array:
    """Zero expert counts of each rank's tokens, [layers, ranks, X]."""
    zeros = jnp.zeros((layers, FACTS.token_ranks, experts), jnp.int32)
    return with_sharding_constraint(zeros, P(None, EXPERTS_TOKENS, None))


def _served(route: Any, mlp: Any, x: jax.Array, scores: jax.Array, params: Any) -> Any:
    """`experts` on one rank, for its own tokens: x [B, S, D] and scores [B, S, X]."""
    sequences = FACTS.same_tokens * MICROBATCH if FACTS.same_tokens > 1 else MICROBATCH
    used = {name: _expert(name, w) for name, w in params.items()} if FACTS.changes_weights else params
    if FACTS.capacity:
        rows = x.reshape(-1, x.shape[-1])
        weights, chosen = route(scores, _total if FACTS.sequence else lambda counts: counts, sequences)
        total = scores.shape[-1]
        places = math.ceil(chosen.size * FACTS.capacity / total)
        taken = _taken(chosen, total, places)
        # The token copy in each slot, or an index out of range if it is empty.
        picks = jnp.arange(chosen.size)
        there = jnp.full(total * places, chosen.size).at[taken].set(picks, mode="drop").reshape(total, places)
        sent = rows.at[there // chosen.shape[1]].get(mode="fill", fill_value=0)
        weighed = weights.flatten().at[there].get(mode="fill", fill_value=0)
        if FACTS.same_rows:
            sent = jax.lax.pcast(
                named(FACTS.routed, _sent(sent) if FACTS.exchanges else sent), FACTS.sharing, to="varying"
            )
            weighed = jax.lax.pcast(
                named(FACTS.routed, _sent(weighed) if FACTS.exchanges else weighed), FACTS.sharing, to="varying"
            )
        else:
            sent = named(FACTS.routed, _sent(sent) if FACTS.exchanges else sent)
            weighed = named(FACTS.routed, _sent(weighed) if FACTS.exchanges else weighed)
        made = mlp(sent, weighed, used)
        back = _returned(made) if FACTS.exchanges else made
        made = (jax.lax.psum(back, FACTS.sharing) if FACTS.same_rows else back).reshape(total * places, -1)
        mine = made.at[taken].get(mode="fill", fill_value=0)
        picked = jnp.zeros(total, jnp.int32).at[chosen.flatten()].add(1)
        return mine.reshape(*chosen.shape, -1).sum(1).reshape(x.shape), picked[None]
    weights, chosen = route(scores, _total if FACTS.sequence else lambda counts: counts, sequences)
    expert = chosen.flatten()
    counts = jnp.zeros(scores.shape[-1], jnp.int32).at[expert].add(1)
    order = jnp.argsort(expert, stable=True)
    mine = order, jnp.argsort(order)
    sent = _permuted(jnp.repeat(x.reshape(-1, x.shape[-1]), chosen.shape[1], axis=0), *mine)
    weighed = _permuted(weights.flatten(), *mine)
    if FACTS.exchange:
        # Rows of each rank for each expert, [senders, holders, local X], and for each rank, [senders, holders].
        every = jax.lax.all_gather(counts.reshape(FACTS.holders, -1), FACTS.exchange)
        numbers, arrived = every.sum(2), every[:, jax.lax.axis_index(FACTS.exchange)]
        # A token has at most one copy per local expert.
        sizes = chosen.size, FACTS.holders * len(chosen) * min(chosen.shape[1], arrived.shape[1])
        sent, weighed = (_exchanged(sizes, rows, numbers) for rows in (sent, weighed))
    elif FACTS.gathers_rows:
        arrived = counts[None]
    if FACTS.gathers_rows:
        # The ranks that shard an expert have different rows.
        arrived = jax.lax.all_gather(arrived, FACTS.sharing)
        sent, weighed = (jax.lax.all_gather(rows, FACTS.sharing, tiled=True) for rows in (sent, weighed))
    if FACTS.exchanges:
        # Sort by expert, over all senders.
        here = _by_expert(arrived if FACTS.gathers_rows else arrived[None], len(sent))
        sent, weighed = (_permuted(rows, *here) for rows in (sent, weighed))
    sent, weighed = (named("moe.routed", rows) for rows in (sent, weighed))
    if FACTS.same_rows:
        # These ranks have the same rows and shard the matmuls: gradients are summed over them.
        sent, weighed = (jax.lax.pcast(rows, FACTS.sharing, to="varying") for rows in (sent, weighed))
    own = (arrived.sum((0, 1)) if FACTS.gathers_rows else arrived.sum(0)) if FACTS.exchanges else counts
    made = mlp(sent, weighed, used, functools.partial(_of_experts, own))
    if FACTS.exchanges:
        made = _permuted(made, *reversed(here))
    if FACTS.gathers_rows:
        made = jax.lax.psum_scatter(made, FACTS.sharing, scatter_dimension=0, tiled=True)
    if FACTS.exchange:
        made = _exchanged(sizes[::-1], made, numbers.T)
    if FACTS.same_rows:
        made = jax.lax.psum(made, FACTS.sharing)
    made = _permuted(made, *reversed(mine))
    return made.reshape(*chosen.shape, -1).sum(1).reshape(x.shape), counts[None]


@jax.custom_vjp
def _permuted(rows: jax.Array, order: jax.Array, inverse: jax.Array) -> jax.Array:
    """`rows[order]`. With the inverse permutation the backward is a gather instead of a scatter-add."""
    return rows[order]


def _permuted_forward(rows: jax.Array, order: jax.Array, inverse: jax.Array) -> tuple[jax.Array, Any]:
    return rows[order], inverse


def _permuted_backward(inverse: jax.Array, grad: jax.Array) -> tuple[jax.Array, None, None]:
    return grad[inverse], None, None


_permuted.defvjp(_permuted_forward, _permuted_backward)


def _taken(chosen: jax.Array, total: int, places: int) -> jax.Array:
    """The slot of each token at each of its experts, [T * k], first come, first served; an index past the
    capacity drops the token."""
    mine = jax.nn.one_hot(chosen.flatten(), total, dtype=jnp.int32)
    place = jnp.sum((jnp.cumsum(mine, axis=0) - 1) * mine, axis=1)
    return jnp.where(place < places, chosen.flatten() * places + place, total * places)


def _sent(rows: jax.Array) -> jax.Array:
    """Send [X, C, ...] of this rank's tokens; returns [local X, senders * C, ...] of its experts."""
    rows = rows.reshape(FACTS.holders, -1, *rows.shape[1:])
    if FACTS.exchange:
        rows = jax.lax.all_to_all(rows, FACTS.exchange, 0, 0)  # [senders, X here, C, ...]
    if FACTS.gathers_rows:
        rows = jax.lax.all_gather(rows, FACTS.sharing, tiled=True)
    return jnp.swapaxes(rows, 0, 1).reshape(rows.shape[1], -1, *rows.shape[3:])


def _returned(rows: jax.Array) -> jax.Array:
    """Send the experts' outputs, [local X, senders * C, D], back to the ranks of the tokens, [X, C, D]."""
    rows = jnp.swapaxes(rows.reshape(len(rows), FACTS.senders, -1, rows.shape[-1]), 0, 1)
    if FACTS.gathers_rows:
        rows = jax.lax.psum_scatter(rows, FACTS.sharing, scatter_dimension=0, tiled=True)
    if FACTS.exchange:
        rows = jax.lax.all_to_all(rows, FACTS.exchange, 0, 0)
    return rows.reshape(-1, *rows.shape[2:])


def _of_experts(counts: jax.Array, rows: jax.Array, w: jax.Array) -> jax.Array:
    """rows [R, in] sorted by expert, `counts` [X] for each, times the experts' w [X, out, in]: [R, out]."""
    return jax.lax.ragged_dot(rows, jnp.swapaxes(w, 1, 2), counts)


def _of_experts_forward(counts: jax.Array, rows: jax.Array, w: jax.Array) -> tuple[jax.Array, Any]:
    return _of_experts(counts, rows, w), (counts, rows, w)


def _of_experts_backward(saved: Any, grad: jax.Array) -> tuple[None, jax.Array, jax.Array]:
    counts, rows, w = saved
    # The TPU compiler would multiply all rows by every expert for dw; the kernel multiplies each by its own.
    if jax.sharding.get_abstract_mesh().abstract_device.platform == "tpu":
        tiles = math.gcd(len(rows), 512), *(min(1024, size) for size in w.shape[1:])
        dw = tgmm(grad.T, rows, counts, w.dtype, tiles)
    else:
        dims = jax.lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), [0], [])
        dw = jax.lax.ragged_dot_general(grad, rows, counts, dims)
    return None, jax.lax.ragged_dot(grad, w, counts), dw


def _by_expert(counts: jax.Array, places: int) -> tuple[jax.Array, jax.Array]:
    """A permutation of `places` buffer rows that sorts them by expert, empty ones last, and its inverse.

    counts [ranks, senders, local X]: each rank has an equal part of the buffer, which starts with the rows of
    the senders in order, each sorted by expert.
    """
    ends = jnp.cumsum(counts.reshape(len(counts), -1), axis=1)
    numbers = jnp.arange(places // len(counts))
    part = jax.vmap(lambda ends: jnp.searchsorted(ends, numbers, side="right"))(ends)
    expert = jnp.where(part < ends.shape[1], part % counts.shape[2], counts.shape[2]).flatten()
    order = jnp.argsort(expert, stable=True)
    return order, jnp.argsort(order)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _exchanged(sizes: tuple[int, int], rows: jax.Array, numbers: jax.Array) -> jax.Array:
    """All-to-all of `rows`, sorted by receiver, over FACTS.along; returns the received rows, sorted by sender.

    sizes: buffer rows before and after. numbers [senders, receivers]: rows sent from each to each.
    """
    me = jax.lax.axis_index(FACTS.exchange)
    starts, lies = jnp.cumsum(numbers, 1) - numbers, jnp.cumsum(numbers, 0) - numbers
    if FACTS.ragged:
        # Not cleared: rows that no rank sends are in no expert's group, and are not sent back.
        out = jax.lax.pcast(jax.lax.empty((sizes[1], *rows.shape[1:]), rows.dtype), EXPERTS_TOKENS, to="varying")
        where = starts[me], numbers[me], lies[me], numbers[:, me]
        return jax.lax.ragged_all_to_all(rows, out, *where, axis_name=FACTS.exchange)
    # XLA has no ragged all-to-all on CPUs: send blocks with room for the most rows possible.
    block = max(sizes) // FACTS.holders
    sent = rows.at[starts[me][:, None] + jnp.arange(block)].get(mode="fill", fill_value=0)
    sent = jax.lax.all_to_all(sent, FACTS.exchange, 0, 0)
    place = jnp.arange(sizes[1])
    sender = jnp.searchsorted(jnp.cumsum(numbers[:, me]), place, side="right")
    first = lies[:, me].at[sender].get(mode="clip")
    return sent.at[sender, place - first].get(mode="fill", fill_value=0)


def _exchanged_forward(sizes: tuple[int, int], rows: jax.Array, numbers: jax.Array) -> tuple[jax.Array, jax.Array]:
    return _exchanged(sizes, rows, numbers), numbers


def _exchanged_backward(sizes: tuple[int, int], numbers: jax.Array, grad: jax.Array) -> tuple[jax.Array, None]:
    return _exchanged(sizes[::-1], grad, numbers.T), None


_exchanged.defvjp(_exchanged_forward, _exchanged_backward)


def _total(counts: jax.Array) -> jax.Array:
    """Counts summed over all parts of this rank's sequences."""
    return jax.lax.pcast(jax.lax.psum(counts, FACTS.sequence), FACTS.sequence, to="varying")


def _expert(name: str, w: jax.Array) -> jax.Array:
    """The experts' parameter `name`FACTS.of_weights."""
    if not FACTS.casts:
        dim, axes = EXPERTS_GATHERED[_pattern(name)]
        w = jax.lax.pcast(w, EXPERTS_REPEATED[_pattern(name)], to="varying")
        return jax.lax.all_gather(w, axes, axis=dim, tiled=True)
    if FACTS.gathers_weights:
        return _narrow(name, jax.lax.pcast(w, EXPERTS_REPEATED[_pattern(name)], to="varying"))
    return jax.lax.pcast(w, EXPERTS_REPEATED[_pattern(name)], to="varying").astype(COMPUTE)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _narrow(name: str, w: jax.Array) -> jax.Array:
    """All-gathered in FACTS.compute; the backward reduce-scatters the gradient in FACTS.reduce."""
    dim, axes = EXPERTS_GATHERED[_pattern(name)]
    return jax.lax.all_gather(w.astype(COMPUTE), axes, axis=dim, tiled=True)


def _narrow_forward(name: str, w: jax.Array) -> tuple[jax.Array, None]:
    return _narrow(name, w), None


def _narrow_backward(name: str, _: None, dw: jax.Array) -> tuple[jax.Array]:
    dim, axes = EXPERTS_GATHERED[_pattern(name)]
    dtype = jnp.float32 if FACTS.reduce == "fp32" else jnp.bfloat16
    if FACTS.one_each:
        # One expert, without its dim: with it the TPU compiler all-reduces the whole gradient.
        summed = jax.lax.psum_scatter(dw[0].astype(dtype), axes, scatter_dimension=dim - 1, tiled=True)[None]
    else:
        summed = jax.lax.psum_scatter(dw.astype(dtype), axes, scatter_dimension=dim, tiled=True)
    return (summed.astype(jnp.float32),)


_narrow.defvjp(_narrow_forward, _narrow_backward)
