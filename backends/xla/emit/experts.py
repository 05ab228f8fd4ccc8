"""Emits the functions that route tokens to experts: `experts` and its helpers.

Each rank assigns its tokens to slots of the experts, sends the slots to the ranks that hold these experts, and receives
the outputs. All of it is per-rank code in a shard_map: XLA infers no collective.
"""

from __future__ import annotations

import re

from planc.backends.common.source_writer import INDENT, beside, causes, comment, fill
from planc.backends.xla.analysis.expert_mesh import XlaExpertAxes
from planc.backends.xla.analysis.mesh_factors import atoms
from planc.backends.xla.analysis.pipeline import pipelined
from planc.backends.xla.analysis.state_dtypes import JAX_DTYPE
from planc.backends.xla.emit import sorted_experts
from planc.backends.xla.emit.specs import axes_text, entry
from planc.diag.quoting import python_string
from planc.ir.sharding import Sharded

NAMED = '''
def named(name: str, x: jax.Array) -> jax.Array:
    """The activation `name` inside `experts`, in the compute dtype; `remat` can save it."""
    return checkpoint_name(x.astype(COMPUTE), name)
'''

UNNAMED = '''
def named(name: str, x: jax.Array) -> jax.Array:
    """The activation `name` inside `experts`, in the compute dtype."""
    return x.astype(COMPUTE)
'''

EXPERTS = '''
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
    <mlp>
    """
    <mapped>


def unpicked(layers: int, experts: int) -> jax.Array:
    """Zero expert counts of each rank's tokens, [layers, ranks, X]."""
    zeros = jnp.zeros((layers, <number>, experts), jnp.int32)
    return with_sharding_constraint(zeros, P(None, EXPERTS_TOKENS, None))
'''

MAPPED = """
tokens = ACTIVATIONS[<out>]
where = {name: EXPERTS[_pattern(name)] for name in params}
served = functools.partial(_served, route, mlp)
given, answers = (tokens, tokens, where), (tokens, P(EXPERTS_TOKENS, None))
<call>
return mapped(x, scores, params)
"""

IN_PLACES = '''
def _served(route: Any, mlp: Any, x: jax.Array, scores: jax.Array, params: Any) -> Any:
    """`experts` on one rank, for its own tokens: x [B, S, D] and scores [B, S, X]."""
    rows = x.reshape(-1, x.shape[-1])
    weights, chosen = route(scores, <total>, <sequences>)
    total = scores.shape[-1]
    places = math.ceil(chosen.size * <factor> / total)
    taken = _taken(chosen, total, places)
    # The token copy in each slot, or an index out of range if it is empty.
    picks = jnp.arange(chosen.size)
    there = jnp.full(total * places, chosen.size).at[taken].set(picks, mode="drop").reshape(total, places)
    sent = rows.at[there // chosen.shape[1]].get(mode="fill", fill_value=0)
    weighed = weights.flatten().at[there].get(mode="fill", fill_value=0)
    <sent>
    made = mlp(sent, weighed, <params>)
    made = <back>.reshape(total * places, -1)
    mine = made.at[taken].get(mode="fill", fill_value=0)
    picked = jnp.zeros(total, jnp.int32).at[chosen.flatten()].add(1)
    return mine.reshape(*chosen.shape, -1).sum(1).reshape(x.shape), picked[None]


def _taken(chosen: jax.Array, total: int, places: int) -> jax.Array:
    """The slot of each token at each of its experts, [T * k], first come, first served; an index past the
    capacity drops the token."""
    mine = jax.nn.one_hot(chosen.flatten(), total, dtype=jnp.int32)
    place = jnp.sum((jnp.cumsum(mine, axis=0) - 1) * mine, axis=1)
    return jnp.where(place < places, chosen.flatten() * places + place, total * places)
'''

TOTAL = '''
def _total(counts: jax.Array) -> jax.Array:
    """Counts summed over all parts of this rank's sequences."""
    return jax.lax.pcast(jax.lax.psum(counts, <axes>), <axes>, to="varying")
'''

SENT = '''
def _sent(rows: jax.Array) -> jax.Array:
    """Send [X, C, ...] of this rank's tokens; returns [local X, senders * C, ...] of its experts."""
    <lines>
    return jnp.swapaxes(rows, 0, 1).reshape(rows.shape[1], -1, *rows.shape[3:])


def _returned(rows: jax.Array) -> jax.Array:
    """Send the experts' outputs, [local X, senders * C, D], back to the ranks of the tokens, [X, C, D]."""
    rows = jnp.swapaxes(rows.reshape(len(rows), <senders>, -1, rows.shape[-1]), 0, 1)
    <back>
    return rows.reshape(-1, *rows.shape[2:])
'''

GATHERED = '''
def _expert(name: str, w: jax.Array) -> jax.Array:
    """The experts' parameter `name`, all-gathered over <axes>."""
    dim, axes = EXPERTS_GATHERED[_pattern(name)]
    w = jax.lax.pcast(w, EXPERTS_REPEATED[_pattern(name)], to="varying")
    return jax.lax.all_gather(w, axes, axis=dim, tiled=True)
'''

GATHERED_NARROW = '''
def _expert(name: str, w: jax.Array) -> jax.Array:
    """The experts' parameter `name` in <compute>, all-gathered over <axes>."""
    return _narrow(name, jax.lax.pcast(w, EXPERTS_REPEATED[_pattern(name)], to="varying"))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _narrow(name: str, w: jax.Array) -> jax.Array:
    """All-gathered in <compute>; the backward reduce-scatters the gradient in <reduce>."""
    dim, axes = EXPERTS_GATHERED[_pattern(name)]
    return jax.lax.all_gather(w.astype(COMPUTE), axes, axis=dim, tiled=True)


def _narrow_forward(name: str, w: jax.Array) -> tuple[jax.Array, None]:
    return _narrow(name, w), None


def _narrow_backward(name: str, _: None, dw: jax.Array) -> tuple[jax.Array]:
    dim, axes = EXPERTS_GATHERED[_pattern(name)]
    <summed>
    return (summed.astype(jnp.float32),)


_narrow.defvjp(_narrow_forward, _narrow_backward)
'''

SUMMED = "summed = jax.lax.psum_scatter(dw.astype(<dtype>), axes, scatter_dimension=dim, tiled=True)"
SUMMED_OF_ONE = """
# One expert, without its dim: with it the TPU compiler all-reduces the whole gradient.
summed = jax.lax.psum_scatter(dw[0].astype(<dtype>), axes, scatter_dimension=dim - 1, tiled=True)[None]"""

NARROW = '''
def _expert(name: str, w: jax.Array) -> jax.Array:
    """The experts' parameter `name` in <compute>; its gradient is summed over the ranks in fp32."""
    return jax.lax.pcast(w, EXPERTS_REPEATED[_pattern(name)], to="varying").astype(COMPUTE)
'''


PICKS = (
    ('"grad_norm"})`; donates the old state.', '"grad_norm", "picks"})`; donates the old state.'),
    (
        """[sequences, sequence_tokens]. `params`: arrays or shapes.
""",
        """[sequences, sequence_tokens]. `params`: arrays or shapes.
    `loss_fn` returns the loss, and picks [routed layers, ranks, X] as `experts` counts them.
""",
    ),
    ("loss, grads = _accumulate(loss_fn, ", "loss, grads, picks = _accumulate(loss_fn, "),
    (
        """        return {"params": params, "optimizer": moments}, {"loss": loss, "grad_norm": norm}
""",
        """        metrics = {"loss": loss, "grad_norm": norm, "picks": jnp.sum(picks, axis=1)}  # [routed layers, X]
        return {"params": params, "optimizer": moments}, metrics
""",
    ),
    (
        "    state = state_shardings(mesh, params, optimizer)\n",
        """    state = state_shardings(mesh, params, optimizer)
    metrics = dict.fromkeys(("loss", "grad_norm", "picks"), whole)
""",
    ),
    ("""out_shardings=(state, {"loss": whole, "grad_norm": whole}),""", "out_shardings=(state, metrics),"),
    (", *batch), batches))", ", *batch)[0], batches))"),
    ("targets: jax.Array) -> tuple[jax.Array, Any]:", "targets: jax.Array) -> tuple[Any, ...]:"),
    (
        "The mean loss of the global batch and its gradients, fp32, accumulated",
        "Mean loss, its gradients, fp32, and picks of the global batch, accumulated",
    ),
    ("loss, grads = jax.value_and_grad(loss_fn)(", "(loss, picks), grads = jax.value_and_grad(loss_fn, has_aux=True)("),
    ("def one(total: Any, batch: Any) -> tuple[Any, None]:", "def one(total: Any, batch: Any) -> tuple[Any, Any]:"),
    (", total, (loss, grads)), None", ", total, (loss, grads)), picks"),
    ("total, _ = jax.lax.scan(one, zeros, batches)", "total, picks = jax.lax.scan(one, zeros, batches)"),
    (
        "    return jax.tree.map(lambda x: x / batches[0].shape[0], total)",
        """    loss, grads = jax.tree.map(lambda x: x / batches[0].shape[0], total)
    return loss, grads, picks.sum(0)""",
    ),
)
"""Edits of the step for a loss function that also returns expert counts [routed layers, ranks, X]."""


def with_picks(text: str) -> str:
    """Return `text`, source of a function of the step, edited for a loss function that also returns expert counts."""
    for plain, told in PICKS:
        text = text.replace(plain, told)
    return re.sub(r"(?m)( return _accumulate\(.*\))$", r"\1[:2]", text)


def expert_tables(sharded: Sharded) -> list[str]:
    """Return the lines of the tables of experts' layouts (`EXPERTS`), gathers and gradient sums; [] without experts."""
    experts = XlaExpertAxes(sharded)
    if not experts.ops:
        return []
    said = "as stored" if experts.in_use else "as used"
    out = [*beside(f"EXPERTS_TOKENS = {axes_text(experts.tokens)}", "axes that shard the tokens in expert routing")]
    out += [*comment(f"Layout of experts' weights in use: {said}."), *causes([experts.cause]), "EXPERTS = {"]
    out += [line for p in experts.params for line in entry(p.param.name, experts.resting(p))] + ["}"]
    if experts.in_use:
        out += [*comment("The dim on which each is all-gathered, and the axes."), "EXPERTS_GATHERED = {"]
        out += [_row(p.param.name, _dim_and_axes(*experts.gathered(p))) for p in experts.params] + ["}"]
    if experts.in_use or _casts(experts):
        out += [*comment("The axes over which each is replicated, and its gradient summed."), "EXPERTS_REPEATED = {"]
        out += [_row(p.param.name, axes_text(experts.repeated(p))) for p in experts.params] + ["}"]
    return out


def expert_functions(sharded: Sharded, *, names: bool) -> list[str]:
    """Return the source of `named`, `experts` and its helpers; [] without experts. `names` is True if the program saves
    some activation by its name."""
    experts = XlaExpertAxes(sharded)
    if not experts.ops:
        return []
    total = "_total" if experts.sequence else "lambda counts: counts"
    weights = "{name: _expert(name, w) for name, w in params.items()}" if _changed(experts) else "params"
    served = _in_places if experts.capacity else sorted_experts.served
    found = [NAMED if names else UNNAMED, _experts(experts), *served(experts, total, weights, _sequences(experts))]
    found += [fill(TOTAL, axes=axes_text(experts.sequence))] if experts.sequence else []
    return [*found, *_expert(experts)]


def _experts(experts: XlaExpertAxes) -> str:
    return fill(
        EXPERTS,
        mlp="\n".join(_mlp(experts)),
        number=str(_size(experts, experts.tokens)),
        mapped=_mapped(experts),
    )


def _in_places(experts: XlaExpertAxes, total: str, weights: str, sequences: str) -> list[str]:
    """Return the source of `_served` for experts with a capacity. Arguments are those of `sorted_experts.served`."""
    moves = bool(experts.exchange or experts.gathers)
    routed = f"named({python_string(experts.ops[0].op.inputs[0])}, {'_sent(<rows>)' if moves else '<rows>'})"
    back = "_returned(made)" if moves else "made"
    if experts.tensor and not experts.gathers:
        # These ranks shard the matmuls of every row: the rows' gradients are summed over them.
        back = f"jax.lax.psum({back}, {axes_text(experts.tensor)})"
        routed = f'jax.lax.pcast({routed}, {axes_text(experts.tensor)}, to="varying")'
    text = fill(
        IN_PLACES,
        total=total,
        sequences=sequences,
        factor=f"{experts.plan.route.factor:g}",
        sent="\n".join(f"{part} = {fill(routed, rows=part)}" for part in ("sent", "weighed")),
        params=weights,
        back=back,
    )
    return [text, *([_sent(experts)] if moves else [])]


def _sequences(experts: XlaExpertAxes) -> str:
    """Return code for the number of sequences over which the loss is averaged, for the gradient of the balance loss.

    In a pipeline, and beside a kernel, JAX sums this gradient over all ranks, and several ranks may have the same
    tokens: the code multiplies the number by how many have.
    """
    if not pipelined(experts.plan) and not experts.has_kernel:
        return "MICROBATCH"
    same = _size(experts, tuple(a for a in experts.dividing if a not in experts.tokens))
    return f"{same} * MICROBATCH" if same > 1 else "MICROBATCH"


def _mapped(experts: XlaExpertAxes) -> str:
    """Return the lines that shard_map `_served` over the mesh. In a pipeline, whose body is per-rank code already, they
    map only over axes that shard tokens or weights: gradients would be summed over any other axis too."""
    call = "mapped = jax.shard_map(served, in_specs=given, out_specs=answers, axis_names=set(MESH))"
    if experts.has_kernel and not pipelined(experts.plan):
        call = call.replace("set(MESH)", "set(MESH), check_vma=False")
    if pipelined(experts.plan):
        if not experts.dividing:
            return "return _served(route, mlp, x, scores, params)"
        axes = f"axes = {{{', '.join(map(python_string, experts.dividing))}}}"
        call = f"{axes}\n{call.replace('set(MESH)', 'axes, check_vma=False')}"
    return fill(MAPPED, out=python_string(experts.combine.output), call=call)


def _mlp(experts: XlaExpertAxes) -> list[str]:
    if experts.capacity:
        return [
            "`mlp(rows [X, C, D], weights [X, C], params)` runs a rank's experts on the rows",
            "in their C slots.",
            f"An expert has {experts.plan.route.factor:g} times its even share of slots for each rank's tokens;",
            "tokens beyond that are dropped.",
        ]
    return [
        "`mlp(rows [R, D], weights [R], params, times)` runs a rank's experts on rows sorted by expert,",
        "which `times` multiplies by a parameter; rows beyond those of the last expert are ignored.",
        "No token is dropped.",
    ]


def _changed(experts: XlaExpertAxes) -> bool:
    """True if experts' weights are gathered or cast at each use."""
    return experts.in_use or _casts(experts)


def _sent(experts: XlaExpertAxes) -> str:
    holders = _size(experts, experts.exchange)
    senders = holders * (_size(experts, experts.tensor) if experts.gathers else 1)
    there = [f"rows = rows.reshape({holders}, -1, *rows.shape[1:])"]
    back: list[str] = []
    if experts.exchange:
        call = f"rows = jax.lax.all_to_all(rows, {axes_text(experts.exchange)}, 0, 0)"
        there += beside(call, "[senders, X here, C, ...]", depth=1)
        back = [call]
    if experts.gathers:
        there.append(f"rows = jax.lax.all_gather(rows, {axes_text(experts.tensor)}, tiled=True)")
        scatter = f"rows = jax.lax.psum_scatter(rows, {axes_text(experts.tensor)}, scatter_dimension=0, tiled=True)"
        back.insert(0, scatter)
    return fill(SENT, lines="\n".join(there), back="\n".join(back), senders=str(senders))


def _expert(experts: XlaExpertAxes) -> list[str]:
    precision = experts.plan.precision
    axes = ", ".join(dict.fromkeys(a for p in experts.params for a in experts.gathered(p)[1]))
    if experts.in_use and not _casts(experts):
        return [fill(GATHERED, axes=axes)]
    if not _casts(experts):
        return []
    text = GATHERED_NARROW if experts.in_use else NARROW
    dtype = JAX_DTYPE[precision.reduce]
    summed = fill(SUMMED_OF_ONE if experts.alone else SUMMED, dtype=dtype)
    return [fill(text, axes=axes, compute=precision.compute, reduce=precision.reduce, summed=summed)]


def _casts(experts: XlaExpertAxes) -> bool:
    return experts.plan.precision.compute != "fp32"


def _size(experts: XlaExpertAxes, axes: tuple[str, ...]) -> int:
    sizes = {a.name: a.size for a in atoms(experts.plan)}
    total = 1
    for axis in axes:
        total *= sizes[axis]
    return total


def _dim_and_axes(dim: int, axes: tuple[str, ...]) -> str:
    return f"({dim}, {axes_text(axes)})"


def _row(name: str, value: str) -> str:
    return f"{INDENT}{python_string(name)}: {value},"
