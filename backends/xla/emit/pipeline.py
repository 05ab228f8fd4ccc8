"""The functions of an emitted file that run the layers as a pipeline: each rank some stages, all in one loop."""

from __future__ import annotations

from planc.backends.common.source_writer import beside, comment, fill
from planc.backends.xla.analysis.layouts import Spec, activation_spec, gathers_in_use
from planc.backends.xla.analysis.pipeline import chunks, iterations, pipelined, stack_axes, stack_shape
from planc.backends.xla.analysis.saved_by_blocks import every, saved_activations
from planc.backends.xla.emit.specs import entry
from planc.diag.quoting import python_string
from planc.ir.plan import Plan
from planc.ir.sharding import Sharded

LAYERS = '''
def layers(block: Callable[[jax.Array, Any], jax.Array], x: jax.Array, stack: Any) -> jax.Array:
    """x [sequences, S, E] through `block(x, one layer's parameters)`, once for each layer of the stack.

    Over <axis> by hand, over the other axes by XLA. <order>
    """
    pipeline = jax.shard_map(
        functools.partial(_pipeline, block),
        in_specs=(P(<quoted>), P(*STACK)),
        out_specs=P(<quoted>),
        axis_names={<quoted>},
    )
    return _joined(pipeline(_microbatches(x), stack))


def _pipeline(block: Callable[..., jax.Array], waiting: jax.Array, stack: Any) -> jax.Array:
    """One rank's part: `waiting` [its share of the microbatches, MICROBATCH, S, E], and its layers.

    In each iteration a rank hands its result to the next one. The microbatches that wait move towards rank 0
    and make room for results at the last rank: at the end each rank has its share of them.
    """
    rank, ranks, slots = jax.lax.axis_index(<quoted>), MESH[<quoted>], len(waiting)
    onward = [(<from_to>) for i in range(<senders>)]
    back = [(i, i - 1) for i in range(1, ranks)]
    <body>
    <stage>

    def iteration(carry: Any, i: jax.Array) -> tuple[Any, None]:
        <carry> = carry
        slot = i % slots
        <enter>
        <through>
        moved = jax.lax.ppermute(waiting[slot], <quoted>, back)
        waiting = waiting.at[slot].set(jnp.where(rank == ranks - 1, y, moved))
        return (<given>), None

    <start>
    (_, waiting<ignored>), _ = jax.lax.scan(iteration, start, jnp.arange(ITERATIONS))
    return jnp.roll(waiting, 1 - ranks, axis=0)


def _microbatches(x: jax.Array) -> jax.Array:
    """[sequences, S, E] -> [microbatches, MICROBATCH, S, E]: each rank cuts its own sequences."""
    mine = x.reshape(DATA_PARALLEL, -1, MICROBATCH // DATA_PARALLEL, *x.shape[1:])
    batches = jnp.moveaxis(mine, 0, 1).reshape(-1, MICROBATCH, *x.shape[1:])
    return with_sharding_constraint(batches, P(<quoted>, *ACTIVATIONS[<hidden>]))


def _joined(batches: jax.Array) -> jax.Array:
    """[microbatches, MICROBATCH, S, E] -> [sequences, S, E], in the order of the batch."""
    mine = batches.reshape(-1, DATA_PARALLEL, MICROBATCH // DATA_PARALLEL, *batches.shape[2:])
    return constrain(<hidden>, jnp.moveaxis(mine, 1, 0).reshape(-1, *batches.shape[2:]))
'''

ORDER = {
    True: "The loop goes round the ranks once for each of\n    their stages, all microbatches before the next one.",
    False: "Every microbatch passes the\n    stages in the order of the ranks.",
}
ENTER = """
        x = jnp.where(rank == 0, waiting[slot], x)
"""
ENTER_CIRCULAR = """
        x = jnp.where((rank == 0) & (i < slots * ranks), waiting[slot], x)
"""
ENTER_STORED = """
        later = later.at[(i - ranks) % len(later)].set(x)  # rank 0: what came round waits for its turn
        again = later[i % len(later)]
        x = jnp.where(rank == 0, jnp.where(i < len(later), waiting[slot], again), x)
"""
CHUNK = """
        chunk = jnp.clip((i - rank) // (slots * ranks), 0, <last>)
"""
BODY = "body = remat(lambda x, layer: (block(x, layer), None))"
BODY_GATHERED = """
# A layer waits for its x: else all of a stage's weights are gathered before the loop, and kept whole.
body = remat(lambda x, layer: (block(*jax.lax.optimization_barrier((x, layer))), None))"""
STAGE = """
    policy = jax.checkpoint_policies.save_only_these_names(<names>)

    @functools.partial(jax.checkpoint, policy=policy, prevent_cse=False)
    def stage(x: jax.Array, chunk: jax.Array) -> jax.Array:
        # Cut out again in the backward, or each iteration would keep a copy of these weights.
        here = jax.tree.map(lambda w: jax.lax.dynamic_index_in_dim(w, chunk, keepdims=False), stack)
        return jax.lax.scan(body, x, here)[0]
"""
START = "start = (waiting[0], waiting)  # what a rank computes before its first microbatch is never read"
START_STORED = """
    later = jnp.broadcast_to(waiting[0], (slots * ranks, *waiting.shape[1:]))
    start = (waiting[0], waiting, later)  # what a rank computes before its first microbatch is never read
"""

CONSTRAIN_ENDS = '''
def _resting(name: str) -> P:
    """In a stage of the pipeline, or before and after it, where its ranks share the sequences."""
    tables = {True: ACTIVATIONS, False: ENDS}
    return tables[<quoted> in jax.sharding.get_abstract_mesh().manual_axes][name]
'''


def constants(sharded: Sharded) -> list[str]:
    """`STACK` and `ITERATIONS`, if there is a pipeline."""
    plan = sharded.plan
    if not pipelined(plan):
        return []
    assert plan.split is not None
    dims = "[layers]" if chunks(plan) == 1 else f"[{chunks(plan)} chunks, layers of a chunk on all ranks]"
    entries = ", ".join(python_string(a[0]) if a else "None" for a in stack_axes(plan))
    trailing = "," if len(stack_shape(plan)) == 1 else ""
    said = f"leading dims of the layers' parameters, {dims}; {plan.split.cause.comment()}"
    count = f"{chunks(plan)} x {plan.microbatches} microbatches, and {plan.pipeline - 1} to fill the pipeline"
    return [*beside(f"STACK = ({entries}{trailing})", said), *beside(f"ITERATIONS = {iterations(plan)}", count)]


def ends_table(sharded: Sharded) -> list[str]:
    """`ENDS`: where activations rest before and after the pipeline, or nothing without one."""
    plan = sharded.plan
    if not pipelined(plan):
        return []
    assert plan.split is not None
    outer = [o.op.output for o in (*sharded.ops["first"], *sharded.ops["last"])]
    tensors = [sharded.model.tensor[t] for t in dict.fromkeys(outer)]
    rows = [row for t in tensors if t.dims and t.dtype != "int" for row in entry(t.name, ends_spec(sharded, t.name))]
    head = f"Activations before and after the pipeline, where the ranks of {plan.split.axis} share the sequences."
    return [*comment(head), "ENDS = {", *rows, "}"]


def ends_spec(sharded: Sharded, tensor: str) -> Spec:
    """The layout an activation rests in before and after a pipeline: its ranks share the sequences."""
    return shared_by_stages(sharded, sharded.model.tensor[tensor].dims, activation_spec(sharded, tensor))


def shared_by_stages(sharded: Sharded, dims: tuple[str, ...], spec: Spec) -> Spec:
    """The `spec` of a tensor with `dims`, its sequences divided over the ranks of the pipeline too, where there is
    one."""
    if not pipelined(sharded.plan):
        return spec
    assert sharded.plan.split is not None
    axis = sharded.plan.split.axis
    return tuple((*axes, axis) if d == "batch" else axes for d, axes in zip(dims, spec, strict=True))


def pipeline_function(sharded: Sharded) -> str:
    """`layers` as a pipeline, and what it needs."""
    plan = sharded.plan
    assert plan.split is not None
    circular = chunks(plan) > 1
    stored = circular and plan.microbatches > plan.pipeline
    enter = fill(ENTER_STORED if stored else ENTER_CIRCULAR if circular else ENTER)
    if circular:
        enter += "\n" + fill(CHUNK, last=str(chunks(plan) - 1))
    hidden = python_string(sharded.model.block_output)
    names = ", ".join([hidden, *(["*KEPT"] if saved_activations(sharded) else [])])
    through = "y = _in_groups(block, x, stack)" if every(sharded) > 1 else "y, _ = jax.lax.scan(body, x, stack)"
    sent = f"jax.lax.ppermute(y, {python_string(plan.split.axis)}, onward), waiting"
    return fill(
        LAYERS,
        axis=plan.split.axis,
        quoted=python_string(plan.split.axis),
        order=ORDER[circular],
        from_to="i, (i + 1) % ranks" if circular else "i, i + 1",
        senders="ranks" if circular else "ranks - 1",
        carry="x, waiting, later" if stored else "x, waiting",
        enter=enter,
        body=_body(sharded),
        stage="\n" + fill(STAGE, names=names) if circular else "",
        through="y = stage(x, chunk)" if circular else through,
        given=f"{sent}, later" if stored else sent,
        start=fill(START_STORED if stored else START),
        ignored=", _" if stored else "",
        hidden=hidden,
    )


def _body(sharded: Sharded) -> str:
    """The body of the loop over a rank's layers; "" where `_in_groups` has its own."""
    if every(sharded) > 1:
        return ""
    return fill(BODY_GATHERED if gathers_in_use(sharded.plan) and chunks(sharded.plan) == 1 else BODY)


def resting_function(plan: Plan) -> str:
    """`_resting`: the spec of an activation, in a stage or outside."""
    assert plan.split is not None
    return fill(CONSTRAIN_ENDS, quoted=python_string(plan.split.axis))
