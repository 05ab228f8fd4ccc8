"""Emits the functions of training: the mesh, the state, the step."""

from __future__ import annotations

from planc.backends.common.source_writer import beside, causes, fill
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
from planc.ir.plan import Noun, Plan
from planc.ir.sharding import Sharded

MESH = '''
def build_mesh(devices: Sequence[jax.Device] | None = None) -> Mesh:
    """A mesh of the first <count> devices with the axes of MESH."""
    # Auto: XLA chooses layouts between constraints; Explicit would need annotations in `loss_fn`.
    kinds = (AxisType.Auto,) * len(MESH)
    return jax.make_mesh(tuple(MESH.values()), tuple(MESH), kinds, devices=devices)
'''

MESH_TORUS = '''
def build_mesh(devices: Sequence[jax.Device] | None = None) -> Mesh:
    """A mesh of the first <count> devices, with neighbours along an axis linked on the torus if possible."""
    found = list(jax.devices() if devices is None else devices)[: math.prod(MESH.values())]
    # Auto: XLA chooses layouts between constraints; Explicit would need annotations in `loss_fn`.
    kinds = (AxisType.Auto,) * len(MESH)
    return Mesh(_on_torus(found), tuple(MESH), axis_types=kinds)


def _on_torus(devices: list[jax.Device]) -> np.ndarray:
    """The devices in the mesh's shape. A mesh axis may use a part of a torus axis."""
    shape = tuple(MESH.values())
    try:
        return mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)
    except (NotImplementedError, ValueError):  # the mesh fits no torus: use the devices' order
        return np.asarray(devices).reshape(shape)
'''

MESH_SLICES = '''
def build_mesh(devices: Sequence[jax.Device] | None = None) -> Mesh:
    """A mesh of the first <count> devices, with SLICES across slices, and neighbours along an axis linked on
    each slice's torus if possible."""
    found = list(jax.devices() if devices is None else devices)[: math.prod(MESH.values())]
    # Auto: XLA chooses layouts between constraints; Explicit would need annotations in `loss_fn`.
    kinds = (AxisType.Auto,) * len(MESH)
    return Mesh(_on_slices(found), tuple(MESH), axis_types=kinds)


def _on_slices(devices: list[jax.Device]) -> np.ndarray:
    """The devices in the mesh's shape. A mesh axis may use a part of a torus axis."""
    across = tuple(SLICES.get(name, 1) for name in MESH)
    within = tuple(size // ranks for size, ranks in zip(MESH.values(), across, strict=True))
    try:
        return mesh_utils.create_hybrid_device_mesh(within, across, devices, allow_split_physical_axes=True)
    except (NotImplementedError, ValueError):  # the mesh fits no such torus
        return np.asarray(devices).reshape(tuple(MESH.values()))
'''

STATE = '''
def adamw(
    betas: tuple[float, float] = (0.9, 0.95), eps: float = 1e-8, weight_decay: float = 0.1
) -> optax.GradientTransformation:
    """AdamW with decoupled decay, without the learning rate, which is an argument of the step."""
    <chain>


def _decayed(params: Any) -> Any:
    return jax.tree_util.tree_map_with_path(
        lambda path, _: _pattern(jax.tree_util.keystr(path, simple=True, separator=".")) not in NOT_DECAYED,
        params,
    )


def state_shardings(mesh: Mesh, params: Any, optimizer: optax.GradientTransformation) -> Any:
    """A NamedSharding for every leaf of the state, for parameters or their shapes."""
    moments = optax.tree_map_params(
        optimizer,
        lambda moment, where: jax.tree.map(lambda _: where, moment),
        jax.eval_shape(optimizer.init, params),
        <optimizer>,
        transform_non_params=lambda _: NamedSharding(mesh, P()),
        is_leaf=lambda moment: isinstance(moment, optax.MaskedNode),  # a parameter without this moment
    )
    return {"params": <params>, "optimizer": moments}


def init_state(params: Any, optimizer: optax.GradientTransformation, mesh: Mesh) -> Any:
    """Sharded parameters, and the optimizer's initial state in its layout."""
    where = state_shardings(mesh, params, optimizer)
    params = jax.device_put(params, where["params"])
    return {
        "params": params,
        "optimizer": jax.jit(optimizer.init, out_shardings=where["optimizer"])(params),
    }
'''
"""The optimizer and its state."""
CHAIN = """
return optax.chain(
    optax.scale_by_adam(*betas, eps=eps),
    optax.add_decayed_weights(weight_decay, mask=_decayed),
)"""
CHAIN_NARROW = """
return narrow(
    optax.chain(
        optax.scale_by_adam(*betas, eps=eps),
        optax.add_decayed_weights(weight_decay, mask=_decayed),
    )
)"""

NARROW = '''
def narrow(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """An optimizer that computes in fp32 and stores its state in OPTIMIZER_DTYPE."""

    def init(params: Any) -> Any:
        return _in_dtype(optimizer.init(_wide(params)), OPTIMIZER_DTYPE)

    def update(grads: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        updates, moments = optimizer.update(grads, _wide(state), params)
        return updates, _in_dtype(moments, OPTIMIZER_DTYPE)

    return optax.GradientTransformation(init, update)


def _wide(tree: Any) -> Any:
    """State cast to fp32, for computing."""
    return _in_dtype(tree, jnp.float32)


def _in_dtype(tree: Any, dtype: Any) -> Any:
    """The tree cast to another dtype, rounded to nearest; counters stay integers."""
    return jax.tree.map(lambda x: x.astype({"i": x.dtype}.get(x.dtype.kind, dtype)), tree)
'''
"""State in dtypes other than fp32."""

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


OPTIONS = '''
def _compiler_options(mesh: Mesh) -> dict[str, bool | int] | None:
    """TPU_OPTIONS on a mesh of TPUs; other compilers refuse their names."""
    return {"tpu": TPU_OPTIONS}.get(mesh.devices.flat[0].platform)
'''


def mesh_function(plan: Plan) -> str:
    torus = MESH_SLICES if ranks_over_slices(plan) else MESH_TORUS
    text = torus if plan.cluster.has_tpus else MESH
    return fill(text, count=str(plan.mesh.devices))


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
    functions = [step, *([OPTIONS] if options else []), _accumulate(sharded), *gathered]
    functions += [TRACING if casts(plan) else TRACING_FP32]
    functions += [*offload_functions(sharded), *padding_functions(sharded)]
    functions = [with_picks(text) for text in functions] if plan.model.top_k else functions
    return [text.replace("gradients, fp32", f"gradients, {plan.store_dtype('grads')}") for text in functions]


def _compiled(plan: Plan) -> str:
    return "\n".join(causes(dict.fromkeys(c.cause for c in plan.compiles)))


def state_functions(plan: Plan) -> list[str]:
    """Return the source of the functions that build the optimizer and its state, and that round state."""
    narrow = narrow_state(plan)
    chain = CHAIN_NARROW if narrow else CHAIN
    state = fill(STATE, chain=chain.strip("\n"), optimizer=_layouts(plan, "optimizer"), params=_layouts(plan, "params"))
    return [state, *([NARROW] if narrow else [])]


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
