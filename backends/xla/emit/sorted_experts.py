"""Emits dropless experts: token copies sorted by expert, and grouped matmuls.

Each rank sorts its tokens' copies by expert and sends each rank the rows for its experts, in buffers for the most rows
possible. The receiver sorts the rows of all senders by expert and multiplies them by the weights in one grouped matmul
(`jax.lax.ragged_dot`). libtpu 0.0.42 has a kernel for that one and for the rows' gradient, but multiplies all rows by
every expert for the weights' gradient: on TPUs megablox's kernel computes it.
"""

from __future__ import annotations

from planc.backends.common.source_writer import fill
from planc.backends.xla.analysis.expert_mesh import XlaExpertAxes
from planc.backends.xla.emit.specs import axes_text

SORTED = '''
def _served(route: Any, mlp: Any, x: jax.Array, scores: jax.Array, params: Any) -> Any:
    """`experts` on one rank, for its own tokens: x [B, S, D] and scores [B, S, X]."""
    weights, chosen = route(scores, <total>, <sequences>)
    expert = chosen.flatten()
    counts = jnp.zeros(scores.shape[-1], jnp.int32).at[expert].add(1)
    order = jnp.argsort(expert, stable=True)
    mine = order, jnp.argsort(order)
    sent = _permuted(jnp.repeat(x.reshape(-1, x.shape[-1]), chosen.shape[1], axis=0), *mine)
    weighed = _permuted(weights.flatten(), *mine)
    <there>
    made = mlp(sent, weighed, <params>, functools.partial(_of_experts, <counts>))
    <back>
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
'''

GROUPED = '''
def _of_experts(counts: jax.Array, rows: jax.Array, w: jax.Array) -> jax.Array:
    """rows [R, in] sorted by expert, `counts` [X] for each, times the experts' w [X, out, in]: [R, out]."""
    return jax.lax.ragged_dot(rows, jnp.swapaxes(w, 1, 2), counts)
'''

GRADIENT_BY_KERNEL = """
def _of_experts_forward(counts: jax.Array, rows: jax.Array, w: jax.Array) -> tuple[jax.Array, Any]:
    return _of_experts(counts, rows, w), (counts, rows, w)


def _of_experts_backward(kept: Any, grad: jax.Array) -> tuple[None, jax.Array, jax.Array]:
    counts, rows, w = kept
    # The TPU compiler would multiply all rows by every expert for dw; the kernel multiplies each by its own.
    if jax.sharding.get_abstract_mesh().abstract_device.platform == "tpu":
        tiles = math.gcd(len(rows), <tile_rows>), *(min(<tile>, size) for size in w.shape[1:])
        dw = tgmm(grad.T, rows, counts, w.dtype, tiles)
    else:
        dims = jax.lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), [0], [])
        dw = jax.lax.ragged_dot_general(grad, rows, counts, dims)
    return None, jax.lax.ragged_dot(grad, w, counts), dw


_of_experts.defvjp(_of_experts_forward, _of_experts_backward)
"""
TILE_ROWS, TILE = 512, 1024
"""Tiles of the kernel, of rows and of both dims of a weight: `wi_tile_drhs_*` of MaxText's base.yml."""

EXCHANGE = """
# Rows of each rank for each expert, [senders, holders, local X], and for each rank, [senders, holders].
every = jax.lax.all_gather(counts.reshape(<holders>, -1), <axes>)
numbers, arrived = every.sum(2), every[:, jax.lax.axis_index(<axes>)]
# A token has at most one copy per local expert.
sizes = chosen.size, <holders> * len(chosen) * min(chosen.shape[1], arrived.shape[1])
sent, weighed = (_exchanged(sizes, rows, numbers) for rows in (sent, weighed))"""

GATHER = """
# The ranks that shard an expert have different rows.
arrived = jax.lax.all_gather(arrived, <axes>)
sent, weighed = (jax.lax.all_gather(rows, <axes>, tiled=True) for rows in (sent, weighed))"""

SORT = """
# Sort by expert, over all senders.
here = _by_expert(<arrived>, len(sent))
sent, weighed = (_permuted(rows, *here) for rows in (sent, weighed))"""

NAMED = 'sent, weighed = (named("moe.routed", rows) for rows in (sent, weighed))'
SAME = """
# These ranks have the same rows and shard the matmuls: gradients are summed over them.
sent, weighed = (jax.lax.pcast(rows, <axes>, to="varying") for rows in (sent, weighed))"""

UNSORT = "made = _permuted(made, *reversed(here))"
SCATTER = "made = jax.lax.psum_scatter(made, <axes>, scatter_dimension=0, tiled=True)"
RETURN = "made = _exchanged(sizes[::-1], made, numbers.T)"
SUM = "made = jax.lax.psum(made, <axes>)"

BY_EXPERT = '''
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
'''

EXCHANGED = '''
@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _exchanged(sizes: tuple[int, int], rows: jax.Array, numbers: jax.Array) -> jax.Array:
    """All-to-all of `rows`, sorted by receiver, over <along>; returns the received rows, sorted by sender.

    sizes: buffer rows before and after. numbers [senders, receivers]: rows sent from each to each.
    """
    me = jax.lax.axis_index(<axes>)
    starts, lies = jnp.cumsum(numbers, 1) - numbers, jnp.cumsum(numbers, 0) - numbers
    <body>


def _exchanged_forward(
    sizes: tuple[int, int], rows: jax.Array, numbers: jax.Array
) -> tuple[jax.Array, jax.Array]:
    return _exchanged(sizes, rows, numbers), numbers


def _exchanged_backward(
    sizes: tuple[int, int], numbers: jax.Array, grad: jax.Array
) -> tuple[jax.Array, None]:
    return _exchanged(sizes[::-1], grad, numbers.T), None


_exchanged.defvjp(_exchanged_forward, _exchanged_backward)
'''

RAGGED = """
# Not cleared: rows that no rank sends are in no expert's group, and are not sent back.
out = jax.lax.pcast(jax.lax.empty((sizes[1], *rows.shape[1:]), rows.dtype), EXPERTS_TOKENS, to="varying")
where = starts[me], numbers[me], lies[me], numbers[:, me]
return jax.lax.ragged_all_to_all(rows, out, *where, axis_name=<axes>)"""

IN_BLOCKS = """
# XLA has no ragged all-to-all on CPUs: send blocks with room for the most rows possible.
block = max(sizes) // <holders>
sent = rows.at[starts[me][:, None] + jnp.arange(block)].get(mode="fill", fill_value=0)
sent = jax.lax.all_to_all(sent, <axes>, 0, 0)
place = jnp.arange(sizes[1])
sender = jnp.searchsorted(jnp.cumsum(numbers[:, me]), place, side="right")
first = lies[:, me].at[sender].get(mode="clip")
return sent.at[sender, place - first].get(mode="fill", fill_value=0)"""


def served(experts: XlaExpertAxes, total: str, params: str, sequences: str) -> list[str]:
    """Return the source of `_served` and its helpers for the plan of `experts`, one text each. Three arguments are
    code: `total` sums counts over ranks, `params` are the weights in the compute dtype, and `sequences` is the number
    of sequences in the mean of the loss."""
    names = {"total": total, "params": params, "sequences": sequences}
    found = [fill(SORTED, there=_there(experts), back=_back(experts), counts=_counts(experts), **names)]
    found += _grouped(experts)
    found += [BY_EXPERT] if experts.exchange or experts.gathers else []
    return [*found, *([_exchanged(experts)] if experts.exchange else [])]


def _grouped(experts: XlaExpertAxes) -> list[str]:
    if not experts.has_kernel:
        return [GROUPED]
    kernel = fill(GRADIENT_BY_KERNEL, tile_rows=str(TILE_ROWS), tile=str(TILE))
    return [f"@jax.custom_vjp{GROUPED}", kernel]


def _counts(experts: XlaExpertAxes) -> str:
    """Return code for the number of rows of each local expert."""
    if experts.gathers:
        return "arrived.sum((0, 1))"
    return "arrived.sum(0)" if experts.exchange else "counts"


def _there(experts: XlaExpertAxes) -> str:
    parts = []
    if experts.exchange:
        parts.append(fill(EXCHANGE, axes=axes_text(experts.exchange), holders=str(experts.holders)))
    if experts.gathers:
        parts += [] if experts.exchange else ["arrived = counts[None]"]
        parts.append(fill(GATHER, axes=axes_text(experts.tensor)))
    if experts.exchange or experts.gathers:
        parts.append(fill(SORT, arrived="arrived" if experts.gathers else "arrived[None]"))
    parts.append(NAMED)
    if experts.tensor and not experts.gathers:
        parts.append(fill(SAME, axes=axes_text(experts.tensor)))
    return "\n".join(p.strip("\n") for p in parts)


def _back(experts: XlaExpertAxes) -> str:
    parts = [UNSORT] if experts.exchange or experts.gathers else []
    if experts.gathers:
        parts.append(fill(SCATTER, axes=axes_text(experts.tensor)))
    parts += [RETURN] if experts.exchange else []
    if experts.tensor and not experts.gathers:
        parts.append(fill(SUM, axes=axes_text(experts.tensor)))
    return "\n".join(parts)


def _exchanged(experts: XlaExpertAxes) -> str:
    axes = axes_text(experts.exchange)
    body = fill(RAGGED if experts.ragged else IN_BLOCKS, axes=axes, holders=str(experts.holders))
    return fill(EXCHANGED, axes=axes, along=" and ".join(experts.exchange), body=body.strip("\n"))
