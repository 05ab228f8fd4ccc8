"""Emits the functions for a sharded sequence dim: attention, and the index of each row.

Each rank of the context axes holds some rows of every sequence. Only attention mixes rows: keys and values are
all-gathered for it, or passed around a ring.
"""

from __future__ import annotations

from planc.backends.common.source_writer import beside, call, causes, fill
from planc.backends.xla.analysis.attention import balanced, keyed_axes, rings, runs_splash
from planc.backends.xla.analysis.layouts import Spec, batch_spec, spec_of
from planc.backends.xla.analysis.mesh_factors import parts
from planc.backends.xla.analysis.pipeline import pipelined
from planc.backends.xla.emit.specs import axis_text, spec_text
from planc.backends.xla.emit.splash import filled_up, splash_constants, splash_function
from planc.backends.xla.emit.splash_rows import gathered_function, ring_constants, ring_functions
from planc.diag.quoting import python_string
from planc.ir.plan import Plan
from planc.ir.sharding import Sharded


def context_axes(plan: Plan) -> tuple[str, ...]:
    """Return the axes that shard the sequence of the tokens, outermost first."""
    return plan.mesh.in_order(plan.axes_of("sequence"))


def rows_spec(sharded: Sharded) -> Spec:
    """Return the spec of tokens and targets [sequences, S] at the input of the model."""
    return (batch_spec(sharded.plan)[0], parts(sharded.plan, context_axes(sharded.plan)))


def given_spec(sharded: Sharded) -> Spec:
    """Return the spec of tokens and targets at the input of a step. The sequence is not yet sharded if the program
    reorders it first (load-balanced context parallelism)."""
    return batch_spec(sharded.plan) if balanced(sharded) else rows_spec(sharded)


def constants(sharded: Sharded) -> list[str]:
    """Return the lines of the kernel's constants (`BLOCK` and others), and of `SEQUENCE_RANKS` and `ROWS` if the
    program uses them."""
    axes = keyed_axes(sharded)
    kernel = splash_constants(sharded) if runs_splash(sharded) else []
    kernel += ring_constants(sharded) if kernel and rings(sharded) else []
    if not axes or not (balanced(sharded) or rings(sharded) or kernel):
        return kernel
    plan = sharded.plan
    shard = plan.cause_of_shard("sequence", axes[0])
    said = f"ranks that share a sequence; {shard.comment()}" if shard else "ranks that share a sequence"
    rows = f"ROWS = {spec_text(rows_spec(sharded))}"
    return [
        *kernel,
        *beside(f"SEQUENCE_RANKS = {plan.mesh.size(*axes)}", said),
        *(
            beside(rows, "the same with the rows of a sequence in the order of `positions`")
            if balanced(sharded)
            else []
        ),
    ]


POSITIONS = '''
def positions(length: int) -> jax.Array:
    """Position in its sequence of each row of an activation, [length]."""
    return jnp.arange(length)
'''

POSITIONS_BALANCED = '''
def positions(length: int) -> jax.Array:
    """Position in its sequence of each row of an activation, [length].

    Each rank of <axes> has a piece from each end, which balances causal attention.
    """
    heads, tails = jnp.split(jnp.arange(length).reshape(2 * SEQUENCE_RANKS, -1), 2)
    return jnp.stack((heads, tails[::-1]), axis=1).reshape(length)
'''

ORDERED = '''
def _ordered(rows: jax.Array) -> jax.Array:
    """[sequences, S]: each sequence's rows in the order of `positions`, then sharded over the ranks."""
    return with_sharding_constraint(rows[:, positions(rows.shape[1])], ROWS)
'''

ATTEND = '''
def attend(q: jax.Array, k: jax.Array, v: jax.Array<window>) -> jax.Array:
    """Causal attention: queries [B, S, heads, D], keys and values [B, S, kv_heads, D].<said>"""
    <wide>
    return jax.nn.dot_product_attention(q, k, v, is_causal=True<local>)<narrowed>
'''

SEEN = """

    A row attends to `window` rows, itself included; 0: all before it.
    """

GATHERED = '''
def attend(q: jax.Array, k: jax.Array, v: jax.Array<window>) -> jax.Array:
    """Causal attention: queries [B, S, heads, D], keys and values [B, S, kv_heads, D].

    Rows stay sharded over <axes>; keys and values are all-gathered over it.<said>
    """
    <cause>
    k, v = (with_sharding_constraint(x, <spec>) for x in (k, v))
    rows = positions(q.shape[1])
    <seen>
    <wide>
    return jax.nn.dot_product_attention(q, k, v, mask=seen[None, None])<narrowed>
'''

RING = '''
def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Causal attention: queries [B, S, heads, D], keys and values [B, S, kv_heads, D].

    Ring attention: keys and values are passed around the ranks of <axes>. XLA partitions the other axes.
    """
    <cause>
    groups = q.reshape(*k.shape[:3], -1, q.shape[-1])
    return _ring(groups, k, v).reshape(*q.shape[:-1], v.shape[-1])


@jax.custom_vjp
def _ring(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Attention of rows q [B, S, kv_heads, G, D] to keys k and values v [B, S, kv_heads, D].

    Partial results are merged by their softmax sums (Liu et al. 2023, Ring Attention).
    """
    return _ring_forward(q, k, v)[0]


def _ring_forward(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, Any]:
    out, log_sum = _on_each_rank(_attend_in_turns, 2)(q, k, v)
    <name>
    return out, (q, k, v, out, log_sum)


def _ring_backward(kept: Any, grad: jax.Array) -> Any:
    return _on_each_rank(_gradients_in_turns, 3)(*kept, grad)


_ring.defvjp(_ring_forward, _ring_backward)


def _on_each_rank(function: Callable[..., Any], results: int) -> Callable[..., Any]:
    """shard_map a function of a rank's own rows [B, R, ...] over all rows."""
    rows = P(None, <entry>)
    <mapped>
'''

STEPS = '''
def _attend_in_turns(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(output, log-sum-exp) of a rank's rows: over its own keys first, then those received in each step."""
    size = <size>

    def turn(carry: Any, step: jax.Array) -> tuple[Any, None]:
        out, log_sum, keys = carry[0], carry[1], _passed(carry[2:])
        for row, key in _meeting(step, size):
            of_rows, of_keys = _rows_from(row, size, q, out, log_sum), _rows_from(key, size, *keys)
            part, part_sum = _attend_part(of_rows[0], *of_keys)
            <hide>
            total = jnp.logaddexp(of_rows[2], part_sum)
            old, new = jnp.exp(of_rows[2] - total)[..., None], jnp.exp(part_sum - total)[..., None]
            out, log_sum = _put(row, (out, log_sum), (of_rows[1] * old + part * new, total))
        return (out, log_sum, *keys), None

    first = (*_attend_part(q, k, v, <own>), k, v)
    (out, log_sum, *_), _ = jax.lax.scan(turn, first, jnp.arange(1, SEQUENCE_RANKS))
    return out.astype(q.dtype), log_sum


def _gradients_in_turns(
    q: jax.Array, k: jax.Array, v: jax.Array, out: jax.Array, log_sum: jax.Array, grad: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Gradients of a rank's q, k and v. Those of keys are passed around with the keys, back to their rank."""
    <delta>

    def turn(carry: Any, step: jax.Array) -> tuple[Any, None]:
        dq, (k, v, dk, dv) = carry[0], _passed(carry[1:])
        for row, key in _meeting(step, size):
            q_part, grad_part, known, sums = _rows_from(row, size, q, grad, <known>, log_sum)
            k_part, v_part = _rows_from(key, size, k, v)
            parts = _part_gradients(q_part, grad_part, known, sums, k_part, v_part<visible>)
            <seen>
            (dq,) = _add(row, (dq,), parts[:1])
            dk, dv = _add(key, (dk, dv), parts[1:])
        return (dq, k, v, dk, dv), None

    dq, dk, dv = _part_gradients(q, grad, <known>, log_sum, k, v, <own>)
    start = (dq, k, v, dk, dv)
    (dq, _, _, dk, dv), _ = jax.lax.scan(turn, start, jnp.arange(1, SEQUENCE_RANKS))
    dk, dv = _passed((dk, dv))
    return dq.astype(q.dtype), dk.astype(k.dtype), dv.astype(v.dtype)
'''

PLAIN_PARTS = '''
def _attend_part(
    q: jax.Array, k: jax.Array, v: jax.Array, seen: jax.Array | bool = True
) -> tuple[jax.Array, jax.Array]:
    """Attention of some rows over some keys: (output, log-sum-exp), fp32."""
    scores = _scores(q, k, seen)
    log_sum = jax.nn.logsumexp(scores, axis=-1)
    weights = jnp.exp(scores - log_sum[..., None])
    return jnp.einsum("brkgc,bckd->brkgd", weights, v.astype(jnp.float32)), log_sum


def _part_gradients(
    q: jax.Array,
    grad: jax.Array,
    delta: jax.Array,
    log_sum: jax.Array,
    k: jax.Array,
    v: jax.Array,
    seen: jax.Array | bool = True,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Gradients of q, k and v from some rows and keys; log_sum is over all of a row's keys."""
    q, grad, k, v = (x.astype(jnp.float32) for x in (q, grad, k, v))
    weights = jnp.exp(_scores(q, k, seen) - log_sum[..., None])
    dv = jnp.einsum("brkgc,brkgd->bckd", weights, grad)
    ds = weights * (jnp.einsum("brkgd,bckd->brkgc", grad, v) - delta[..., None]) * q.shape[-1] ** -0.5
    return jnp.einsum("brkgc,bckd->brkgd", ds, k), jnp.einsum("brkgc,brkgd->bckd", ds, q), dv


def _scores(q: jax.Array, k: jax.Array, seen: jax.Array | bool) -> jax.Array:
    """Attention scores [B, R, kv_heads, G, C], fp32."""
    scores = jnp.einsum("brkgd,bckd->brkgc", q, k, preferred_element_type=jnp.float32)
    return jnp.where(seen, scores * q.shape[-1] ** -0.5, -jnp.inf)


def _causal(rows: int) -> jax.Array:
    """Causal mask [R, 1, 1, C] of a rank's own keys; its rows are in sequence order."""
    return jnp.tril(jnp.ones((rows, rows), bool))[:, None, None]
'''

HANDED_ON = '''
def _meeting(step: jax.Array, size: int) -> tuple[tuple[Any, Any], ...]:
    """<meeting>"""
    <meet>


def _rows_from(start: Any, size: int, *arrays: jax.Array) -> list[jax.Array]:
    return [jax.lax.dynamic_slice_in_dim(x, start, size, axis=<axis>) for x in arrays]


def _put(start: Any, arrays: Sequence[jax.Array], parts: Sequence[jax.Array]) -> list[jax.Array]:
    pairs = zip(arrays, parts, strict=True)
    return [jax.lax.dynamic_update_slice_in_dim(x, part, start, axis=<axis>) for x, part in pairs]


def _add(start: Any, arrays: Sequence[jax.Array], parts: Sequence[jax.Array]) -> list[jax.Array]:
    old = _rows_from(start, parts[0].shape[<axis>], *arrays)
    return _put(start, arrays, [a + b for a, b in zip(old, parts, strict=True)])


def _passed(arrays: Sequence[jax.Array]) -> list[jax.Array]:
    """Send arrays to the next rank and return those of the previous one."""
    ring = [(i, (i + 1) % SEQUENCE_RANKS) for i in range(SEQUENCE_RANKS)]
    return [jax.lax.ppermute(x, <entry>, ring) for x in arrays]
'''

NAME = """
out, log_sum = (checkpoint_name(x, <out>) for x in (out, log_sum))
"""
HIDE = """
# No row here attends to keys of later ranks.
part_sum = jnp.where(step <= jax.lax.axis_index(<entry>), part_sum, -jnp.inf)
"""
STRETCHES = (
    "All rows of this rank attend to all keys received from `step` ranks before, if that rank is earlier.",
    "return ((0, 0),)",
)
PIECES = (
    """Offsets of the pieces of this rank's rows, and of the received keys that they attend to.

    Tails attend to every head. Heads attend to those of earlier ranks, tails to the tails of later ones.
    """,
    "near = jnp.where(step <= jax.lax.axis_index(<entry>), 0, size)\nreturn (size, 0), (near, near)",
)


def context_functions(sharded: Sharded, *, named: bool) -> list[str]:
    """Return the source of `positions`, `attend` and helpers. `named`: True if activations are saved by name."""
    axes, splash = parts(sharded.plan, keyed_axes(sharded)), runs_splash(sharded)
    if splash and not axes:
        return [POSITIONS, splash_function(sharded, windows=windows(sharded))]
    first = fill(POSITIONS_BALANCED, axes=" and ".join(axes)) if balanced(sharded) else POSITIONS
    if splash and balanced(sharded) and not rings(sharded):
        first = first.replace("jnp.", "np.").replace("jax.Array", "np.ndarray")  # the kernel knows it when it is made
    order = [ORDERED] if balanced(sharded) else []
    if not axes:
        return [first, *order, _attend_without_ring(sharded)]
    if rings(sharded):
        return [first, *order, *_ring(sharded, axes, named)]
    if splash:
        of_rows = {"windows": windows(sharded), "balanced": balanced(sharded)}
        return [first, *order, gathered_function(sharded, axes, _cause(sharded), **of_rows)]
    return [first, *order, _gathered(sharded, axes)]


def windows(sharded: Sharded) -> bool:
    """True if some attention of the model has a sliding window."""
    return any(o.op.window for o in sharded.attentions)


def _attend_without_ring(sharded: Sharded) -> str:
    filled = filled_up(sharded)
    if not windows(sharded):
        return fill(ATTEND, window="", said="", local="", **filled)
    local = ", local_window_size=((window or q.shape[1]) - 1, 0)"
    return fill(ATTEND, window=", window: int = 0", said=SEEN, local=local, **filled)


def _gathered(sharded: Sharded, axes: tuple[str, ...]) -> str:
    o = sharded.attentions[0]
    name = next(iter(o.op.whole_of))
    dims = sharded.model.tensor[name].dims
    seen = "seen = rows[:, None] >= rows"
    if windows(sharded):
        seen = "back = rows[:, None] - rows\nseen = (back >= 0) & (back < (window or len(rows)))"
    return fill(
        GATHERED,
        axes=" and ".join(axes),
        window=", window: int = 0" if windows(sharded) else "",
        said=" A row\n    attends to `window` rows, itself included; 0: all before it." if windows(sharded) else "",
        cause=_cause(sharded),
        spec=spec_text(spec_of(sharded.plan, dims, o.needs(name, dims))),
        seen=seen,
        **filled_up(sharded),
    )


def _ring(sharded: Sharded, axes: tuple[str, ...], named: bool) -> list[str]:
    half, splash = balanced(sharded), runs_splash(sharded)
    entry = axis_text(axes)
    meeting, meet = PIECES if half else STRETCHES
    out, rows = python_string(sharded.attentions[0].op.output), 2 if splash else 1
    size = f"q.shape[{rows}] // 2" if half else f"q.shape[{rows}]"
    before = f"step <= jax.lax.axis_index({entry})"
    parts = {
        "own": "own=True" if splash else "_causal(q.shape[1])",
        "known": "out" if splash else "delta",
        "delta": f"size = {size}"
        if splash
        else f"delta, size = jnp.sum(grad.astype(jnp.float32) * out, axis=-1), {size}",
        "visible": "" if half or splash else f", {before}",
        "seen": "" if half or not splash else f"parts = [jnp.where({before}, part, 0.0) for part in parts]",
    }
    turns = fill(STEPS, size=size, hide="" if half else fill(HIDE, entry=entry), **parts)
    handed = fill(HANDED_ON, meeting=meeting, meet=fill(meet, entry=entry), entry=entry, axis=str(rows))
    if splash:
        attend, of_parts = ring_functions(sharded, axes, _cause(sharded), named=named)
        return [attend, turns, of_parts, handed]
    names = ", ".join(map(python_string, axes))
    mapped = ["function", "in_specs=rows", "out_specs=(rows,) * results", f"axis_names={{{names}}}"]
    mapped += ["check_vma=False"] if pipelined(sharded.plan) else []
    attend = fill(
        RING,
        axes=" and ".join(axes),
        cause=_cause(sharded),
        mapped=call("return jax.shard_map(", mapped, depth=1),
        name=fill(NAME, out=out) if named else "",
        entry=entry,
    )
    return [attend, turns, PLAIN_PARTS, handed]


def _cause(sharded: Sharded) -> str:
    kernel = sharded.plan.attention
    said = kernel.cause if kernel is not None else sharded.plan.cause_of_shard("sequence", keyed_axes(sharded)[0])
    return "\n".join(causes([said]))
