"""Emits the functions that run the layers as a pipeline: each rank runs its stages, tick by tick.

A step differentiates each stage by itself, one microbatch at a time: a forward stores its residuals in slots that its
backward frees. The loss function is the user's: it is traced with other definitions of `layers`, once for what comes
before the layers and once for what comes after.
"""

from __future__ import annotations

from planc.backends.common.source_writer import INDENT, WIDTH, beside, comment, fill
from planc.backends.common.specialise import specialise
from planc.backends.xla.analysis.attention import balanced
from planc.backends.xla.analysis.layouts import Spec, activation_spec
from planc.backends.xla.analysis.mesh_factors import atoms
from planc.backends.xla.analysis.padding import padded
from planc.backends.xla.analysis.pipeline import (
    chunks,
    layers_of_a_stage,
    lockstep,
    pipelined,
    shards_of_rows,
    stack_axes,
    stage_layers,
    uneven,
)
from planc.backends.xla.analysis.saved_by_blocks import every
from planc.backends.xla.analysis.state_dtypes import narrow_state
from planc.backends.xla.emit.context_parallel import rows_spec
from planc.backends.xla.emit.specs import entry, spec_text
from planc.backends.xla.program.facts import JaxFacts
from planc.diag.quoting import python_string
from planc.ir.plan import Plan
from planc.ir.sharding import Sharded

HELD = "held = np.flatnonzero(np.arange(LAYERS) < np.array(STAGE_LAYERS)[..., None])"
"""Indices of the layers in a padded stack of stages."""
WIDE = '''
def _wide(params: Any) -> Any:
    """Parameters cast to fp32, so that their gradients are accumulated in fp32."""
    return jax.tree.map(lambda w: w.astype(jnp.float32), params)
'''

ACCUMULATE = """
def _accumulate(loss_fn: Loss, params: Any, tokens: jax.Array, targets: jax.Array) -> tuple[jax.Array, Any]:
    \"""The mean loss of the global batch and its gradients, fp32, by a pipeline.\"""
    <cut>
    <before>
    x, of_tokens = jax.vjp(lambda params: _embed_microbatches(loss_fn, params, tokens), <wide>)
    _, of_stack = jax.vjp(lambda params: _before_layers(loss_fn, params, tokens)[2], <own>)
    results = (P(), P(*STACK), P()<picks_spec>), P(None, None, <quoted>)
    (loss, layers, ends<picks>), dx = _on_each_stage(_train, results, loss_fn, <params>, x, targets)
    (grads,), (more,) = of_stack(layers), of_tokens(dx)
    <added>
    loss, grads = jax.tree.map(lambda total: total / MICROBATCHES, (loss, grads))
    <held>
    return loss, _placed(<grads>, GRADS)<picks_joined>
"""

ADDED = """
grads = jax.tree_util.tree_map_with_path(lambda path, a, b: a + b + ends.get(_name(path), 0), grads, more)
"""
ADDED_PADDED = """
(grads,) = of_stored(jax.tree.map(jnp.add, grads, more))
grads = jax.tree_util.tree_map_with_path(lambda path, g: g + ends.get(_name(path), 0), grads)
"""

EVALUATE = """
x = _embed_microbatches(loss_fn, <wide>, tokens)
return _on_each_stage(_losses, P(), loss_fn, <params>, x, targets) / MICROBATCHES
"""


def constants(sharded: Sharded) -> list[str]:
    """Return the lines of the pipeline's constants (ticks, leading dims of stacks); [] without a pipeline."""
    plan = sharded.plan
    if not pipelined(plan):
        return []
    assert plan.split is not None
    ticks, parts = lockstep(plan), chunks(plan)
    dims = "[layers]" if parts == 1 else f"[{parts} chunks, layers of a chunk on all ranks]"
    entries = ", ".join(python_string(a[0]) if a else "None" for a in stack_axes(plan))
    trailing = "," if parts == 1 else ""
    said = f"leading dims of the layers' parameters, {dims}; {plan.split.cause.comment()}"
    rounds = [
        *beside(f"CHUNKS = {parts}", "stages of a rank"),
        *beside(f"ROUND = {ticks.round}", "microbatches that a stage runs before the rank's next stage"),
        *beside(f"FORWARDS_PER_RANK = {ticks.numbers}", "forwards of a rank"),
    ]
    return [
        *beside(f"STACK = ({entries}{trailing})", said),
        *beside(f"LAYERS = {layers_of_a_stage(plan)}", "of a stage" if not uneven(plan) else "of the longest stage"),
        *(
            beside(f"STAGE_LAYERS = {stage_layers(plan)}", f"layers of each stage{_by_chunks(parts)}")
            if uneven(plan)
            else []
        ),
        *beside(f"MICROBATCHES = {plan.microbatches}", "of a step"),
        *(rounds if parts > 1 else []),
        *beside(f"FIRST_LOSS = {ticks.first_loss}", "tick of the first loss"),
        *beside(f"FIRST_BACKWARD = {ticks.first_backward}", "tick of the first backward, at the last rank"),
        *beside(f"FORWARDS = {ticks.forward_ticks}", "number of ticks with forwards, and also of those with backwards"),
        *beside(f"ACTIVATION_SLOTS = {ticks.places}", "most forwards that wait for their backward"),
        *beside(f"SHARDS = {shards_of_rows(sharded)}", "parts of a sequence between blocks"),
    ]


def _by_chunks(parts: int) -> str:
    return ", by chunk and rank" if parts > 1 else ""


def ends_table(sharded: Sharded) -> list[str]:
    """Return the lines of the tables for embedding and head, which run outside the pipeline: `ENDS` and `TARGETS` are
    layouts, `LAST` names the parameters after the layers. [] without a pipeline."""
    plan = sharded.plan
    if not pipelined(plan):
        return []
    assert plan.split is not None
    axis = plan.split.axis
    tensors = [sharded.model.tensor[t] for t in dict.fromkeys(o.op.output for o in sharded.ops["first"])]
    rows = [row for t in tensors if t.dims and t.dtype != "int" for row in entry(t.name, ends_spec(sharded, t.name))]
    batch, sequence = rows_spec(sharded)
    last = [p.name for p in sharded.model.params if "last" in p.sections]
    return [
        *comment(f"Activations outside the pipeline, where the ranks of {axis} have shares of the rows."),
        *("ENDS = {", *rows, "}"),
        *beside(f"TARGETS = {spec_text((batch, (axis, *sequence)))}", "those of the microbatches that they shard"),
        *comment("Parameters used after the layers."),
        *("LAST = {", *(f"{INDENT}{python_string(name)}," for name in last), "}"),
    ]


def ends_spec(sharded: Sharded, tensor: str) -> Spec:
    """Return the layout of the activation `tensor` at embedding or head: its sequence is sharded over stages too."""
    return shared_by_stages(sharded, sharded.model.tensor[tensor].dims, activation_spec(sharded, tensor))


def shared_by_stages(sharded: Sharded, dims: tuple[str, ...], spec: Spec) -> Spec:
    """Return `spec`, the layout of a tensor with `dims`, with the sequence sharded over the pipeline's axis too;
    unchanged without a pipeline."""
    if not pipelined(sharded.plan):
        return spec
    assert sharded.plan.split is not None
    axis = sharded.plan.split.axis
    return tuple((axis, *axes) if d == "sequence" else axes for d, axes in zip(dims, spec, strict=True))


def pipeline_functions(sharded: Sharded) -> list[str]:
    """Return the source of `layers` as a pipeline, and its helpers."""
    plan = sharded.plan
    own = [WIDE] if narrow_copies(plan) and not narrow_state(plan) else []
    return [*own, *_functions(sharded, "layers", "_embed_microbatches", "_on_each_stage", "_train", "_losses")]


def resting_function(sharded: Sharded) -> str:
    """Return the source of `_resting`, which returns the layout of an activation inside or outside the pipeline."""
    return "\n\n\n".join(_functions(sharded, "_resting"))


def _functions(sharded: Sharded, *entries: str) -> list[str]:
    return specialise("planc.backends.xla.program", "pipeline", facts_of(sharded), entries, WIDTH)


def facts_of(sharded: Sharded) -> JaxFacts:
    """Return what the plan of `sharded` decides about the functions of its pipeline."""
    plan, ticks = sharded.plan, lockstep(sharded.plan)
    assert plan.split is not None
    return JaxFacts(
        axis=plan.split.axis,
        chunks=chunks(plan),
        forwards_first=ticks.forwards_first,
        delay=ticks.delay,
        uneven=uneven(plan),
        recomputes_groups=every(sharded) > 1,
        gathers_each_pass=plan.gathers_each_pass(),
        widens=narrow_copies(plan),
        padded=bool(padded(sharded)),
        by_hand=len([a for a in atoms(plan) if a.size > 1]) > 1,
        balanced=balanced(sharded),
        experts=sharded.model.sizes["experts"] if sharded.model.top_k else 0,
        hidden=sharded.model.block_output,
    )


def narrow_copies(plan: Plan) -> bool:
    """True if the pipeline computes with copies of the parameters in the compute dtype, gathered once a step."""
    return bool(plan.store("params")) and not plan.gathers_each_pass() and plan.precision.compute != "fp32"


def accumulate_function(sharded: Sharded, before: str, used: str) -> str:
    """Return the source of `_accumulate` for a pipeline. `before` are the lines that gather the parameters; `used` is
    the name of the gathered parameters."""
    plan = sharded.plan
    assert plan.split is not None
    picked, uncut = bool(plan.model.top_k), not padded(sharded)
    return fill(
        ACCUMULATE,
        before=before,
        params=used,
        cut="" if uncut else "own, of_stored = jax.vjp(_unpadded, params)",
        own="params" if uncut else "own",
        added=fill(ADDED if uncut else ADDED_PADDED),
        wide=_wide(plan, _own(sharded, used)),
        quoted=python_string(plan.split.axis),
        picks_spec=", P(*STACK)" if picked else "",
        picks=", picks" if picked else "",
        grads="_in_dtype(grads, GRADS_DTYPE)" if narrow_state(plan) else "grads",
        held=HELD if picked and uneven(plan) else "",
        picks_joined=f", picks.reshape(-1, *picks.shape[-2:]){'[held]' * uneven(plan)}" if picked else "",
    )


def evaluate_lines(sharded: Sharded, used: str) -> str:
    """Return the lines that evaluate the loss by a pipeline. `used` is the name of the parameters in use."""
    return fill(EVALUATE, params=used, wide=_wide(sharded.plan, _own(sharded, used)))


def _own(sharded: Sharded, used: str) -> str:
    """Return code for the parameters without their padding to equal shards; `used` is code for the padded
    parameters."""
    return f"_unpadded({used})" if padded(sharded) else used


def _wide(plan: Plan, params: str) -> str:
    """Return code that casts the parameters `params` (code) to the dtype of their gradient sums; unchanged if the
    pipeline has no copies in the compute dtype."""
    return f"_wide({params})" if narrow_copies(plan) else params
