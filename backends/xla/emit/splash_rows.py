"""Emits `attend` by splash attention with a sharded sequence: over the all-gathered keys, or in a ring over one rank's
keys at a time."""

from __future__ import annotations

from planc.backends.common.source_writer import fill
from planc.backends.xla.analysis.attention import KERNEL_OUTPUT, keeps_output
from planc.backends.xla.analysis.layouts import spec_of
from planc.backends.xla.emit.specs import axis_text, spec_text
from planc.backends.xla.emit.splash import SEEN, filled_up
from planc.diag.quoting import python_string
from planc.ir.sharding import Sharded

GATHERED = '''
def attend(q: jax.Array, k: jax.Array, v: jax.Array<window>) -> jax.Array:
    """Causal attention: queries [B, S, heads, D], keys and values [B, S, kv_heads, D].<said>

    Splash attention, which stores no scores: each device runs it on its heads and rows, over the keys of
    all ranks of <axes>, which it all-gathers.
    """
    <cause>
    given = tuple(ACTIVATIONS[name] for name in (<names>))
    out = ACTIVATIONS[<output>]
    kernel = _kernel(q.shape[1], <heads><given_window>)
    # A rank's shard of the kernel: the blocks of scores of its rows.
    rows = NamedSharding(jax.sharding.get_abstract_mesh(), P(None, <axis>))
    part = kernel.manual_sharding_spec(rows)
    mapped = jax.shard_map(_splash, in_specs=(part, *given), out_specs=out, check_vma=False)
    <wide>
    return mapped(kernel, q, k, v)<narrowed>


def _splash(kernel: Any, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """`attend` on one device."""
    k, v = (jax.lax.all_gather(x, <axis>, axis=1, tiled=True) for x in (k, v))
    <in_order>
    q, k, v = (jnp.swapaxes(x, 1, 2) for x in (q * q.shape[-1] ** -0.5, k, v))
    return jnp.swapaxes(jax.vmap(kernel)(q, k, v), 1, 2)


def _kernel(rows: int, heads: int<window>) -> Any:
    """The kernel for `heads` heads; rows are in the order of `positions`, keys in sequence order."""
    mask = splash_attention.<mask>
    <placed>
    return splash_attention.make_splash_mha(
        splash_attention.MultiHeadMask([mask] * heads),
        block_sizes=splash_attention.BlockSizes(**BLOCK_SIZES),
        head_shards=1,
        q_seq_shards=SEQUENCE_RANKS,
        <kept>
        interpret=jax.sharding.get_abstract_mesh().abstract_device.platform == "cpu",
    )
'''
IN_ORDER = """
# Keys in sequence order.
k, v = (jnp.take(x, np.argsort(positions(x.shape[1])), axis=1) for x in (k, v))
"""

RING = '''
def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Causal attention: queries [B, S, heads, D], keys and values [B, S, kv_heads, D].

    Ring attention: keys and values are passed around the ranks of <axes>, and splash attention, which stores
    no scores, runs on each step.
    """
    <cause>
    <wide>
    return jnp.swapaxes(_ring(*(jnp.swapaxes(x, 1, 2) for x in (q, k, v))), 1, 2)<narrowed>


@jax.custom_vjp
def _ring(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Attention of rows q [B, heads, S, D] to keys k and values v [B, kv_heads, S, D].

    Partial results are merged by their softmax sums (Liu et al. 2023, Ring Attention).
    """
    return _ring_forward(q, k, v)[0]


def _ring_forward(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, Any]:
    of_rows = (QUERIES, P(*QUERIES[:3]))
    given = (QUERIES, KEYS, KEYS)
    mapped = jax.shard_map(_attend_in_turns, in_specs=given, out_specs=of_rows, check_vma=False)
    out, log_sum = mapped(q, k, v)
    <name>
    return out, (q, k, v, out, log_sum)


def _ring_backward(kept: Any, grad: jax.Array) -> Any:
    given = (QUERIES, KEYS, KEYS)
    of_rows = (QUERIES, P(*QUERIES[:3]), QUERIES)
    mapped = jax.shard_map(_gradients_in_turns, in_specs=(*given, *of_rows), out_specs=given, check_vma=False)
    return mapped(*kept, grad)


_ring.defvjp(_ring_forward, _ring_backward)
'''

PARTS = '''
def _attend_part(q: jax.Array, k: jax.Array, v: jax.Array, own: bool = False) -> tuple[jax.Array, jax.Array]:
    """Attention of some rows over some keys: (output, log-sum-exp), fp32. `own`: causal, over the rank's own
    keys."""
    out, (log_sum,) = jax.vmap(_kernel(q, k, own, save_residuals=True))(q * q.shape[-1] ** -0.5, k, v)
    return out.astype(jnp.float32), log_sum


def _part_gradients(
    q: jax.Array,
    grad: jax.Array,
    out: jax.Array,
    log_sum: jax.Array,
    k: jax.Array,
    v: jax.Array,
    own: bool = False,
) -> tuple[jax.Array, ...]:
    """Gradients of q, k and v from some rows and keys; out and log_sum are over all of a row's keys.

    This is the kernel's own backward, for which JAX has no public name, with the sums over all keys.
    """
    kernel, scale = _kernel(q, k, own), q.shape[-1] ** -0.5
    said = kernel.kwargs
    backward = functools.partial(
        splash_attention.splash_attention_kernel._splash_attention_bwd,
        False,
        said["mask_value"],
        said["is_mqa"],
        said["block_sizes"],
        None,
        said["mask_function"],
        None,
        said["interpret"],
    )

    def one(q: jax.Array, k: jax.Array, v: jax.Array, *of_rows: jax.Array) -> tuple[jax.Array, ...]:
        kept = (q, k, v, None, None, *of_rows[:2], kernel.dq_mask_info, kernel.dkv_mask_info)
        return backward(kept, of_rows[2])[3:6]

    dq, dk, dv = (x.astype(jnp.float32) for x in jax.vmap(one)(q * scale, k, v, out, log_sum, grad))
    return dq * scale, dk, dv


def _kernel(q: jax.Array, k: jax.Array, own: bool, **more: Any) -> Any:
    """The kernel for rows [B, heads, R, D] and keys [B, kv_heads, C, D]."""
    masks = {True: splash_attention.CausalMask, False: splash_attention.FullMask}
    mask = masks[own]((q.shape[2], k.shape[2]))
    return splash_attention.make_splash_mha(
        splash_attention.MultiHeadMask([mask] * q.shape[1]),
        block_sizes=splash_attention.BlockSizes(**BLOCK_SIZES),
        head_shards=1,
        q_seq_shards=1,
        interpret=jax.sharding.get_abstract_mesh().abstract_device.platform == "cpu",
        **more,
    )
'''
NAME = """
out, log_sum = (checkpoint_name(x, <out>) for x in (out, log_sum))
"""


def ring_constants(sharded: Sharded) -> list[str]:
    """Return the lines of `QUERIES` and `KEYS`, layouts of queries and keys with the heads before the sequence."""
    o, sizes = sharded.attentions[0], []
    for name, tensor in (("QUERIES", o.op.inputs[0]), ("KEYS", o.op.inputs[1])):
        spec = spec_of(sharded.plan, sharded.model.tensor[tensor].dims, sharded.declared(tensor))
        sizes.append(f"{name} = {spec_text((spec[0], spec[2], spec[1], spec[3]))}")
    return sizes


def gathered_function(sharded: Sharded, axes: tuple[str, ...], cause: str, *, windows: bool, balanced: bool) -> str:
    """Return the source of `attend` with keys all-gathered over `axes`, and its helpers. `cause` is the comment that
    cites the plan's sentence. `windows` is True if some attention has a sliding window, `balanced` if each rank has a
    piece from each end of a sequence."""
    o = sharded.attentions[0]
    mask = "LocalMask((rows, rows), ((window or rows) - 1, 0), 0)" if windows else "CausalMask((rows, rows))"
    heads = sharded.plan.mesh.size(*o.layout.get("heads", ()))
    return fill(
        GATHERED,
        window=", window: int = 0" if windows else "",
        given_window=", window" if windows else "",
        said=SEEN if windows else "",
        axes=" and ".join(axes),
        axis=axis_text(axes),
        cause=cause,
        names=", ".join(map(python_string, o.op.inputs)),
        heads="q.shape[2]" if heads == 1 else f"q.shape[2] // {heads}",
        output=python_string(o.op.output),
        mask=mask,
        placed="mask.q_sequence = np.asarray(positions(rows), np.int32)" if balanced else "",
        in_order=IN_ORDER.strip("\n") if balanced else "",
        kept=f"residual_checkpoint_name={python_string(KERNEL_OUTPUT)}," if keeps_output(sharded) else "",
        **filled_up(sharded),
    )


def ring_functions(sharded: Sharded, axes: tuple[str, ...], cause: str, *, named: bool) -> list[str]:
    """Return the source of `attend` with a ring over `axes`, and of the kernel that runs in each step of the ring.
    `cause` is the comment that cites the plan's sentence. `named` is True if the output gets a checkpoint name."""
    ring = fill(
        RING,
        axes=" and ".join(axes),
        cause=cause,
        name=fill(NAME, out=python_string(KERNEL_OUTPUT)) if named else "",
        **filled_up(sharded),
    )
    return [ring, PARTS]
