"""Emits `chunked_loss`: the head and the cross entropy on one part of the tokens after another.

A part's gradients are computed with its loss, so that the head multiplies no more often than without parts. Sums over
ranks wait for the last part: until then the gradients have a dim for the ranks that will be summed.
"""

from __future__ import annotations

from math import prod

from planc.backends.common.source_writer import beside, fill
from planc.backends.xla.analysis.layouts import Spec, activation_spec, param_spec
from planc.backends.xla.analysis.mesh_factors import atoms
from planc.backends.xla.emit.specs import axis_text, spec_text
from planc.ir.sharding import Sharded

CHUNKED_LOSS = '''
@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def chunked_loss(name: str, x: jax.Array, w: jax.Array, targets: jax.Array) -> jax.Array:
    """Mean cross entropy in fp32 of x [B, S, E] times the parameter `name`, w [V, E]; targets [B, S].

    The logits of LOSS_CHUNKS parts of a rank's tokens are in memory one after another.
    """
    return _loss_forward(name, x, w, targets)[0]


def _loss_forward(name: str, x: jax.Array, w: jax.Array, targets: jax.Array) -> tuple[jax.Array, Any]:
    """The loss, and its gradients. P ranks have a part of the vocabulary, and R a part of the tokens: until all
    chunks are summed, the gradients have dims for the ranks, [chunks, P, R, T, E] and [R, P, V / P, E]."""
    used = weight(name, w.astype(COMPUTE)).reshape(<parts>, -1, w.shape[1])
    words = jnp.arange(len(w)).reshape(used.shape[:2])

    def chunk(carry: Any, part: Any) -> Any:
        total, dw = carry
        rows, labels = part
        logits = jnp.einsum("rte,pve->rtpv", rows, used)
        logits = with_sharding_constraint(logits, <logits>).astype(jnp.float32)
        scores = logits - jnp.max(logits, axis=(2, 3), keepdims=True)
        chosen = labels[..., None, None] == words
        sums = jnp.sum(jnp.exp(scores), axis=(2, 3), keepdims=True)
        picked = jnp.sum(jnp.where(chosen, scores, 0.0), axis=(2, 3))
        total += jnp.sum(jnp.log(sums[..., 0, 0]) - picked) / targets.size
        grad = ((jnp.exp(scores) / sums - chosen) / targets.size).astype(COMPUTE)
        dx = with_sharding_constraint(jnp.einsum("rtpv,pve->prte", grad, used), <dx>)
        more = jnp.einsum("rtpv,rte->rpve", grad, rows, preferred_element_type=jnp.float32)
        return (total, dw + with_sharding_constraint(more, <dw>)), dx

    zeros = with_sharding_constraint(jnp.zeros((<ranks>, *used.shape), jnp.float32), <dw>)
    start = jnp.zeros((), jnp.float32), zeros
    (total, dw), dx = jax.lax.scan(chunk, start, (_in_chunks(x), _in_chunks(targets)))
    split = dx.reshape(LOSS_CHUNKS, -1, <batch>, <sequence>, len(x) // <batch>, x.shape[1] // <divided>, x.shape[2])
    dx = jnp.moveaxis(split, (1, 2, 4, 3, 0), (0, 1, 2, 3, 4)).reshape(-1, *x.shape).sum(0)
    # Summed here, not in the backward: until it is, each rank holds all of it.
    dw = dw.astype(<reduce>).reshape(-1, *w.shape)
    <apart>
    dw = with_sharding_constraint(dw.sum(0), GRADS[_pattern(name)])
    # The layers' backward waits for the sum.
    return total, jax.lax.optimization_barrier((dx, dw.astype(w.dtype)))


def _in_chunks(x: jax.Array) -> jax.Array:
    """x [B, S, ...] as [chunks, R, T, ...]: parts of the tokens of each of R ranks."""
    split = x.reshape(<batch>, -1, <sequence>, LOSS_CHUNKS, x.shape[1] // <divided>, *x.shape[2:])
    moved = jnp.moveaxis(split, (3, 0, 2), (0, 1, 2))
    return moved.reshape(LOSS_CHUNKS, <ranks>, -1, *x.shape[2:])


def _loss_backward(name: str, kept: Any, grad: jax.Array) -> tuple[jax.Array, jax.Array, None]:
    dx, dw = kept
    return dx * grad.astype(dx.dtype), dw * grad.astype(dw.dtype), None


chunked_loss.defvjp(_loss_forward, _loss_backward)
'''

APART = """
# First over the ranks that shard it, then over <axes>.
dw = dw.reshape(<sizes>, *w.shape).sum(<stored>).reshape(-1, *w.shape)
dw = with_sharding_constraint(dw, P(<copies>, *GRADS[_pattern(name)]))"""


def loss_axes(sharded: Sharded) -> Spec:
    """Return the axes that shard batch, sequence and vocabulary in the loss of `sharded`."""
    return activation_spec(sharded, sharded.ops["last"][-1].op.inputs[0])


def chunks_constant(sharded: Sharded) -> list[str]:
    """Return the line of `LOSS_CHUNKS`; [] if the loss is whole."""
    said = sharded.plan.chunked_loss
    whole = said is None or said.chunks == 1
    return [] if said is None or whole else beside(f"LOSS_CHUNKS = {said.chunks}", said.cause.comment())


def chunked_loss(sharded: Sharded) -> list[str]:
    """Return the source of `chunked_loss` and its helpers; [] if the loss is whole."""
    if sharded.plan.loss_chunks == 1:
        return []
    sizes = {a.name: a.size for a in atoms(sharded.plan)}
    batch, sequence, vocab = axes = loss_axes(sharded)
    ranks = (*batch, *sequence)
    count = [prod(sizes[a] for a in of) for of in axes]
    head = next(o for o in reversed(sharded.ops["last"]) if o.op.kind == "matmul")
    sharding = {a for of in param_spec(sharded.plan, sharded.param[head.op.params[0]], "grads") for a in of}
    stored, copies = ([a for a in ranks if (a in sharding) == storing] for storing in (True, False))
    apart = fill(
        APART,
        axes=" and ".join(copies),
        sizes=", ".join(str(sizes[a]) for a in ranks),
        stored=str(tuple(ranks.index(a) for a in stored)),
        copies=axis_text(tuple(copies)) if copies else "",
    )
    return [
        fill(
            CHUNKED_LOSS,
            parts=str(count[2]),
            ranks=str(count[0] * count[1]),
            batch=str(count[0]),
            sequence=str(count[1]),
            divided=f"({count[1]} * LOSS_CHUNKS)",
            logits=spec_text((ranks, (), vocab, ())),
            dx=spec_text((vocab, ranks, (), ())),
            dw=spec_text((ranks, vocab, (), ())),
            apart=apart.strip("\n") if stored and copies else "",
            reduce={"fp32": "jnp.float32", "bf16": "jnp.bfloat16"}[sharded.plan.precision.reduce],
        )
    ]
