"""Emits the functions of training: the mesh, the state, the step."""

from __future__ import annotations

from planc.backends.common.source_writer import WIDTH, beside, causes, fill
from planc.backends.common.specialise import specialise
from planc.backends.xla.analysis.attention import balanced
from planc.backends.xla.analysis.layouts import casts
from planc.backends.xla.analysis.padding import padded
from planc.backends.xla.analysis.pipeline import pipelined
from planc.backends.xla.analysis.slices import ranks_over_slices
from planc.backends.xla.analysis.state_dtypes import narrow_state
from planc.backends.xla.emit.context_parallel import context_axes
from planc.backends.xla.emit.experts import with_picks
from planc.backends.xla.emit.offload import offload_functions
from planc.backends.xla.emit.padding import CUT, padding_functions
from planc.backends.xla.emit.pipeline import accumulate_function, evaluate_lines
from planc.backends.xla.program.facts import JaxFacts
from planc.ir.plan import Noun, Plan
from planc.ir.sharding import Sharded

STEP = '''
def build_train_step(
    loss_fn: Loss, optimizer: optax.GradientTransformation, mesh: Mesh, params: Any, clip_norm: float = 1.0
) -> Callable[..., Any]:
    """`step(state, tokens, targets, lr) -> (state, {"loss", "grad_norm"})`; donates the old state.

    tokens and targets: the global batch, int32 [sequences, sequence_tokens]. `params`: arrays or shapes.
    """
    <cut>

    def step(state: Any, tokens: jax.Array, targets: jax.Array, lr: jax.Array) -> Any:
        with _tracing(mesh):
            <held>
            loss, grads = _accumulate(loss_fn, <params>, tokens, targets)
            <wide>
            norm = jnp.sqrt(sum(jnp.sum(jnp.square(g)) for g in jax.tree.leaves(grads)))
            scale = jnp.minimum(1.0, clip_norm / (norm + 1e-6))
            <update>
            <updates>
        return {"params": params, "optimizer": moments}, {"loss": loss, "grad_norm": norm}

    whole, rows = NamedSharding(mesh, P()), NamedSharding(mesh, BATCH)
    state = state_shardings(mesh, params, optimizer)
    <compiled>
    return jax.jit(
        step,
        in_shardings=(state, rows, rows, whole),
        out_shardings=(state, {"loss": whole, "grad_norm": whole}),  # otherwise XLA may replicate state
        donate_argnums=0,
        <options>
    )


def build_gradients(loss_fn: Loss, mesh: Mesh, params: Any) -> Callable[..., Any]:
    """`gradients(params, tokens, targets) -> (loss, gradients)` of the global batch, for inspection."""
    <cut>

    def gradients(params: Any, tokens: jax.Array, targets: jax.Array) -> Any:
        with _tracing(mesh):
            return _accumulate(loss_fn, <given>, tokens, targets)

    rows, where = NamedSharding(mesh, BATCH), <where>
    out = (NamedSharding(mesh, P()), shardings(mesh, params, GRADS))
    return jax.jit(gradients, in_shardings=(where, rows, rows), out_shardings=out<with_options>)


def build_eval_step(loss_fn: Loss, mesh: Mesh, params: Any) -> Callable[..., jax.Array]:
    """`evaluate(params, tokens, targets) -> mean loss` of a global batch."""
    <cut>

    def evaluate(params: Any, tokens: jax.Array, targets: jax.Array) -> jax.Array:
        with _tracing(mesh):
            <evaluate>

    rows, where = NamedSharding(mesh, BATCH), <where>
    whole = NamedSharding(mesh, P())
    return jax.jit(evaluate, in_shardings=(where, rows, rows), out_shardings=whole<with_options>)
'''

ACCUMULATE = '''
def _accumulate(loss_fn: Loss, params: Any, tokens: jax.Array, targets: jax.Array) -> tuple[jax.Array, Any]:
    """The mean loss of the global batch and its gradients, fp32, accumulated over microbatches."""
    <before>

    def one(total: Any, batch: Any) -> tuple[Any, None]:
        loss, grads = jax.value_and_grad(loss_fn)(<params>, *batch)
        <placed>
        return jax.tree.map(<add>, total, (loss, grads)), None

    batches = (_microbatches(tokens), _microbatches(targets))
    zeros = (jnp.float32(0), _placed(<zeros>, GRADS))
    total, _ = jax.lax.scan(one, zeros, batches)
    return jax.tree.map(lambda x: x / batches[0].shape[0], total)


def _microbatches(rows: jax.Array) -> jax.Array:
    """[sequences, S] -> [microbatches, MICROBATCH, S]: each rank splits its own sequences."""
    mine = <rows>.reshape(DATA_PARALLEL, -1, MICROBATCH // DATA_PARALLEL, rows.shape[-1])
    batches = jnp.moveaxis(mine, 0, 1).reshape(-1, MICROBATCH, rows.shape[-1])
    return with_sharding_constraint(batches, P(None, *<spec>))
'''

GATHERED = '''
def _gathered(params: Any) -> Any:
    """The parameters all-gathered over <axes>."""
    return _placed(params, USED)
'''

GATHERED_NARROW = '''
def _gathered(params: Any) -> Any:
    """The parameters all-gathered over <axes> in <dtype>.

    Cast back to fp32, so that their gradients are accumulated in fp32.
    """
    narrow = jax.tree.map(lambda p: p.astype(COMPUTE), params)
    return jax.tree.map(lambda p, w: w.astype(p.dtype), params, _placed(narrow, USED))
'''

COPIES = '''
def _gathered(params: Any) -> Any:
    """The parameters all-gathered over <axes> in <dtype>."""
    return _placed(jax.tree.map(lambda p: p.astype(COMPUTE), params), USED)
'''

TRACING_FP32 = '''
@contextmanager
def _tracing(mesh: Mesh) -> Iterator[None]:
    """Context for tracing a step: specs refer to this mesh, and fp32 matmuls run in fp32 on every device."""
    with use_abstract_mesh(mesh.abstract_mesh), jax.default_matmul_precision("highest"):
        yield
'''

TRACING = '''
def _tracing(mesh: Mesh) -> AbstractContextManager[None]:
    """Context for tracing a step: specs refer to this mesh."""
    return use_abstract_mesh(mesh.abstract_mesh)
'''


def mesh_function(plan: Plan) -> str:
    facts = JaxFacts(
        devices=plan.mesh.devices,
        torus=plan.cluster.has_tpus,
        slices=plan.cluster.has_tpus and bool(ranks_over_slices(plan)),
    )
    return "\n\n\n".join(specialise("planc.backends.xla.program", "mesh", facts, ["build_mesh"], WIDTH))


def step_functions(sharded: Sharded) -> list[str]:
    """Return the source of the steps and their helpers, one text each."""
    plan = sharded.plan
    cut = CUT if padded(sharded) and not pipelined(plan) else ""
    options = "compiler_options=_compiler_options(mesh)" if plan.cluster.has_tpus else ""
    step = fill(
        STEP,
        update=_update(plan),
        evaluate=_evaluate(sharded),
        compiled=_compiled(plan),
        cut=cut,
        options=f"{options}," if options else "",
        with_options=f", {options}" if options else "",
        **_held(plan),
    )
    gathered = [_gathered(plan)] if _gathers_first(plan) else []
    options_of = specialise("planc.backends.xla.program", "mesh", JaxFacts(), ["_compiler_options"], WIDTH)
    functions = [step, *(options_of if options else []), _accumulate(sharded), *gathered]
    functions += [TRACING if casts(plan) else TRACING_FP32]
    functions += [*offload_functions(sharded), *padding_functions(sharded)]
    functions = [with_picks(text) for text in functions] if plan.model.top_k else functions
    return [text.replace("gradients, fp32", f"gradients, {plan.store_dtype('grads')}") for text in functions]


def _compiled(plan: Plan) -> str:
    return "\n".join(causes(dict.fromkeys(c.cause for c in plan.compiles)))


def state_functions(plan: Plan) -> list[str]:
    """Return the source of the functions that build the optimizer and its state, and that round state."""
    facts = JaxFacts(
        narrow_state=narrow_state(plan),
        params_on_host="params" in plan.offloaded,
        optimizer_on_host="optimizer" in plan.offloaded,
    )
    functions = specialise("planc.backends.xla.program", "state", facts, ["adamw", "init_state"], WIDTH)
    if facts.narrow_state:
        functions += specialise("planc.backends.xla.program", "narrow_state", facts, ["narrow"], WIDTH)
    return functions


def _layouts(plan: Plan, noun: Noun) -> str:
    """Return code for the shardings of `noun` (params or optimizer), with their memory if `noun` is offloaded."""
    given = "mesh, params" if noun == "params" else f"mesh, params, {noun.upper()}"
    return f"_resting(shardings({given}), {noun.upper()}_MEMORY)" if noun in plan.offloaded else f"shardings({given})"


def _held(plan: Plan) -> dict[str, str]:
    narrow, params, copied = narrow_state(plan), 'state["params"]', ""
    if "params" in plan.offloaded:
        copied = "_copies({})"
    elif narrow:
        copied = "_wide({})"
    new = "jax.tree.map(lambda p, u: p - lr * u, params, updates)"
    updates = f'updates, moments = optimizer.update(grads, state["optimizer"], params)\nparams = {_stored(plan, new)}'
    if plan.state_on_host:
        updates = f'params, moments = _updated(optimizer, grads, state["optimizer"], {params}, lr)'
    return {
        "held": f"held = {copied.format(params)}" if copied else "",
        "params": "held" if copied else params,
        "wide": "grads = _wide(grads)" if narrow else "",
        "updates": updates,
        "given": copied.format("params") or "params",
        "where": _layouts(plan, "params"),
    }


def _stored(plan: Plan, new: str) -> str:
    """Return code that casts `new`, code for updated parameters, to their stored dtype."""
    return f"_in_dtype({new}, PARAMS_DTYPE)" if narrow_state(plan) else new


def _gathers_first(plan: Plan) -> bool:
    """True if parameters are gathered before the forward, into copies that outlive a pass."""
    return bool(plan.store("params")) and not plan.gathers_each_pass()


def _update(plan: Plan) -> str:
    """Return the lines that scale gradients and give gradients and parameters the layout of optimizer state."""
    scaled = "jax.tree.map(lambda g: g * scale, grads)"
    if plan.state_on_host:
        stays = plan.store("optimizer") == plan.store("grads")
        return f"grads = {scaled}" if stays else f"grads = _placed({scaled}, OPTIMIZER)"
    held, again = _held(plan)["params"], ""
    if held == "held" and "params" not in plan.offloaded:
        again = "# From the stored shards: from `held` XLA would keep the gathered fp32 arrays and slice them.\n"
        held = '_wide(jax.lax.optimization_barrier(state["params"]))'
    if plan.store("optimizer") == plan.store("grads") == plan.store("params"):
        return f"grads = {scaled}\n{again}params = {held}"
    axes = ", ".join(plan.store("optimizer")) or "no axis"
    return "\n".join(
        (
            f"# Each rank updates its part over {axes}; out_shardings then lay the parameters out.",
            f"grads = _placed({scaled}, OPTIMIZER)",
            f"{again}params = _placed({held}, OPTIMIZER)",
        )
    )


def _evaluate(sharded: Sharded) -> str:
    plan = sharded.plan
    given = _held(plan)["given"]
    lines = [f"params = {given}"] if given != "params" else []
    lines += ["used = _gathered(params)"] if _gathers_first(plan) else []
    params = "used" if _gathers_first(plan) else "params"
    if pipelined(plan):
        lines.append(evaluate_lines(sharded, params))
    else:
        lines += ["batches = (_microbatches(tokens), _microbatches(targets))"]
        lines += [f"return jnp.mean(jax.lax.map(lambda batch: loss_fn({params}, *batch), batches))"]
    return "\n".join(lines)


def _accumulate(sharded: Sharded) -> str:
    plan = sharded.plan
    cause = f"  # {plan.gather.cause.comment()}" if plan.gather else ""
    before, params = "", "params"
    if _gathers_first(plan) and plan.gather_per == "step":
        before, params = f"used = _gathered(params){cause}", "used"
    elif _gathers_first(plan):
        params = "_gathered(params)"
    narrow = narrow_state(plan)
    if pipelined(plan):
        return accumulate_function(sharded, before, params)
    placed = "\n".join(beside("grads = _placed(grads, GRADS)", _reduction(plan), depth=2))
    rows, spec = ("_ordered(rows)", "ROWS") if balanced(sharded) else ("rows", "BATCH")
    zeros = "jax.tree.map(jnp.zeros_like, params)"
    return fill(
        ACCUMULATE,
        before=before,
        params=params,
        placed=placed,
        rows=rows,
        spec=spec,
        add="lambda a, b: (a + b).astype(a.dtype)" if narrow else "jnp.add",
        zeros=f"_in_dtype({zeros}, GRADS_DTYPE)" if narrow else zeros,
    )


def _reduction(plan: Plan) -> str:
    """Return the comment that names the collectives of a gradient sum; "" if no axis shards batch or sequence."""
    scattered = plan.store("grads")
    summed = plan.mesh.in_order({*plan.data_axes, *context_axes(plan)})
    whole = tuple(a for a in summed if a not in scattered)
    said = [f"reduce-scatter over {', '.join(scattered)}"] if scattered else []
    said += [f"all-reduce over {', '.join(whole)}"] if whole else []
    return f"{', '.join(said)}, each microbatch" if said else ""


def _gathered(plan: Plan) -> str:
    if pipelined(plan) and casts(plan):
        return fill(COPIES, axes=", ".join(plan.store("params")), dtype=plan.precision.compute)
    text = GATHERED_NARROW if casts(plan) else GATHERED
    return fill(text, axes=", ".join(plan.store("params")), dtype=plan.precision.compute)
