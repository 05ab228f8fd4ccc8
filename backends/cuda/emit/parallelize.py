"""Emits the functions that parallelize a model or a pipeline stage: apply_tp, apply_recompute, apply_fsdp."""

from __future__ import annotations

from planc.backends.common.source_writer import because, beside, call, causes, fill, lines, tuple_of
from planc.backends.common.specialise import specialise
from planc.backends.cuda.analysis import replays
from planc.backends.cuda.analysis.fsdp_shard_dim import stored_dim
from planc.backends.cuda.analysis.module_placements import relative
from planc.backends.cuda.analysis.roles import AxisRoles, Factor
from planc.backends.cuda.analysis.styles import OWN_ROWS, OWN_STYLES, Style, Styler
from planc.backends.cuda.emit import blocks, experts, fine_tuning
from planc.backends.cuda.program.facts import TorchFacts
from planc.diag.quoting import python_docstring, python_string
from planc.ir.plan import Plan
from planc.ir.sharding import Sharded
from planc.sharding.recompute import names_op

TORCH_DTYPES = {"fp32": "torch.float32", "bf16": "torch.bfloat16", "fp16": "torch.float16"}


def tensor_parallel(roles: AxisRoles, styler: Styler) -> str:
    """Emits apply_tp and the ParallelStyle classes that it uses; "" without tensor parallelism."""
    if not roles.tensor:
        return ""
    top, block = styler.top(), styler.blocks()
    text = fill(
        '''
        def apply_tp(model: nn.Module, mesh: DeviceMesh) -> None:
            """Apply tensor parallelism over the tensor <axes>; the styles issue the collectives.

            src_data_rank=None: each rank takes its shard from its own copy; by default rank 0 would scatter.
            """
            <parts>
            <clone>
        ''',
        axes="axis" if len(roles.tensor_parts) == 1 else "axes",
        parts=lines(*(_divided_over(f, roles, styler, top, block) for f in roles.tensor_meshes)),
        clone=_clone(roles, styler),
    )
    own = [style.name for style in (*top, *block) if style.name in OWN_STYLES]
    classes = specialise("planc.backends.cuda.program", "styles", TorchFacts(), own, width=120)
    return "\n\n\n".join([*classes, text])


def _divided_over(
    factor: Factor, roles: AxisRoles, styler: Styler, top: tuple[Style, ...], block: tuple[Style, ...]
) -> str:
    """Emits the lines that apply tensor parallelism over one mesh dimension, `factor`. `top` are the styles of modules
    outside the blocks, `block` those of modules inside."""
    mine = (tuple(s for s in styles if roles.tensor_part(s.axes) == factor.axes) for styles in (top, block))
    outside, inside = mine
    return lines(
        f"tp = {_mesh_of(factor, roles)}",
        lines(_styles("top", outside), APPLY_PRESENT if roles.pipeline else APPLY_TOP) if outside else "",
        lines(_styles("inside", inside), _apply_blocks(styler)) if inside else "",
    )


def _mesh_of(factor: Factor, roles: AxisRoles) -> str:
    if factor in roles.joined:
        return "joined_mesh(mesh)"
    return f"mesh[{python_string(factor.name)}]"


def joined_mesh(roles: AxisRoles) -> str:
    """Emits joined_mesh, which flattens several mesh dimensions into one for the modules that are sharded over all of
    them; "" if no module is."""
    if not roles.joined:
        return ""
    (factor,) = roles.joined
    return fill(
        '''
        @cache
        def joined_mesh(mesh: DeviceMesh) -> DeviceMesh:
            """One dimension of all ranks over <said>."""
            return mesh[<names>]._flatten(<name>)
        ''',
        said=python_docstring(" and ".join(factor.axes)),
        names=", ".join(map(python_string, factor.axes)),
        name=python_string(factor.name),
    )


APPLY_TOP = "parallelize_module(model, tp, top, src_data_rank=None)"

APPLY_PRESENT = """\
# A stage has only some of these.
present = {path: style for path, style in top.items() if getattr(model, path) is not None}
parallelize_module(model, tp, present, src_data_rank=None)"""

APPLY_BLOCKS = """\
for block in model.layers.values():
    parallelize_module(block, tp, inside, src_data_rank=None)"""

APPLY_KINDS = """\
for block in model.layers.values():
    # A block of one kind has only some of these modules.
    modules = dict(block.named_modules())
    held = {path: style for path, style in inside.items() if path in modules}
    parallelize_module(block, tp, held, src_data_rank=None)"""


def _apply_blocks(styler: Styler) -> str:
    kinds = [{style.path for style in styler.block(kind)} for kind in styler.sharded.model.blocks]
    return APPLY_BLOCKS if all(paths == kinds[0] for paths in kinds) else APPLY_KINDS


def _styles(name: str, styles: tuple[Style, ...]) -> str:
    """Emits a dict `name` from module paths to parallel styles, with the plan's sentences as comments."""
    rows: list[str] = []
    for style in styles:
        arguments = [f"{k}={v}" for k, v in style.arguments]
        row = call(f"{python_string(style.path)}: {style.name}(", arguments, tail=",", depth=2)
        rows += beside(row, style.collective, depth=2)
    return lines(*causes(style.cause for style in styles), fill(f"{name} = {{\n    <rows>\n}}", rows=lines(*rows)))


def _clone(roles: AxisRoles, styler: Styler) -> str:
    """Emits a hook that clones the embedding's output, because AOTAutograd of torch 2.13 drops the gradient of an
    AsyncCollectiveTensor; "" for an embedding whose own style waits for it, and for a model without one."""
    module = next((o.op.module for o in styler.sharded.ops["first"] if o.op.kind == "embedding"), "")
    if not module or any(style.name == OWN_ROWS for style in styler.top()):
        return ""
    hook = f"model.{module}.register_forward_hook(lambda module, inputs, output: output.clone())"
    return lines(ASYNC_OUTPUT, _if_present(roles, module, hook))


ASYNC_OUTPUT = """\
# The output may be an AsyncCollectiveTensor, whose gradient a compiled block of torch 2.13 drops:
# https://github.com/pytorch/pytorch/pull/191113. Its clone is a plain tensor."""


def _if_present(roles: AxisRoles, module: str, line: str) -> str:
    """Emits `line`; in a pipeline under an `if`, because not every stage has the `module`."""
    return f"if model.{module} is not None:\n    {line}" if roles.pipeline else line


def recompute(sharded: Sharded) -> str:
    """Emits apply_recompute, which checkpoints blocks or modules; "" if the plan recomputes nothing."""
    if not sharded.plan.recompute.ops:
        return ""
    selective = replays.is_selective(sharded)
    whole = sharded.plan.recompute.blocks or selective
    text = fill(
        '''
        def apply_recompute(model: nn.Module) -> None:
            """Keep the inputs of <what> only, and run <their> forward again in the backward."""
            <cause>
            <again>
            <why>
            <selected>
                <wraps>
        ''',
        what="each block and the outputs in KEPT" if selective else "each block" if whole else "these modules",
        their="its" if whole else "their",
        cause=because(sharded.plan.recompute.cause),
        again=blocks.again(sharded),
        why=BLOCKS_WRAPPED if whole else MODULES_WRAPPED,
        selected=blocks.selected(sharded),
        wraps=SELECTED.strip() if selective else _checkpoint_wrapper(sharded),
    )
    return "\n\n\n".join(part for part in (blocks.saved_outputs(sharded), _inputs_on_host(sharded), text) if part)


def _inputs_on_host(sharded: Sharded) -> str:
    """Emits inputs_on_host, which offloads the inputs of recomputed blocks; "" if the plan does not offload them."""
    sentence = next((o for o in sharded.plan.offloads if not set(o.what) & {"params", "optimizer"}), None)
    return fill(INPUTS_ON_HOST, cause=because(sentence.cause)).strip() if sentence else ""


INPUTS_ON_HOST = '''
def inputs_on_host(forward: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> torch.Tensor:
    """Runs a checkpointed `forward`; its saved inputs are offloaded to host memory until the backward."""
    <cause>
    with save_on_cpu(pin_memory=torch.cuda.is_available()):
        return forward(*inputs)
'''


SELECTED = """
contexts = partial(create_selective_checkpoint_contexts, Outputs(block).policy)
block.forward = partial(again, block.forward, context_fn=contexts)
"""

BLOCKS_WRAPPED = "# Not `checkpoint_wrapper`: it would add a module to every path."

MODULES_WRAPPED = "# Not `checkpoint_wrapper`: it would also recompute the modules' hooks, and their collectives."


def _checkpoint_wrapper(sharded: Sharded) -> str:
    """Emits the lines that checkpoint a block, or those of its modules that the plan recomputes."""
    if sharded.plan.recompute.blocks:
        replayed = "partial(again, block.forward)"
        on_host = _inputs_on_host(sharded)
        return f"block.forward = {f'partial(inputs_on_host, {replayed})' if on_host else replayed}"
    paths, kinds = recomputed_modules(sharded), sharded.model.blocks
    held = [{relative(o.op.module) for o in sharded.ops[kind]} for kind in kinds]
    everywhere = all(path in modules for path in paths for modules in held)
    if everywhere:
        return lines(*(f"block.{path}.forward = partial(again, block.{path}.forward)" for path in paths))
    return fill(
        """
        for path, module in block.named_modules():
            if path in <paths>:
                module.forward = partial(again, module.forward)
        """,
        paths=tuple_of([python_string(path) for path in paths]),
    )


def recomputed_modules(sharded: Sharded) -> list[str]:
    """Returns the paths, relative to a block, of the modules whose ops the plan of `sharded` recomputes."""
    ops = [o.op for kind in sharded.model.blocks for o in sharded.ops[kind]]
    chosen = [op for op in ops if any(names_op(w, op) for w in sharded.plan.recompute.ops)]
    return list(dict.fromkeys(relative(op.module) for op in chosen))


def state_dtype(roles: AxisRoles) -> str:
    """Emits apply_state_dtype, which casts parameters to the plan's dtype; "" if that is fp32."""
    if roles.state_dtype == "fp32":
        return ""
    cause = next((s.cause for s in roles.plan.stores if s.noun == "params" and s.dtype), None)
    return fill(STATE_DTYPE, cause=because(cause), dtype=TORCH_DTYPES[roles.state_dtype]).strip()


STATE_DTYPE = '''
def apply_state_dtype(model: nn.Module) -> None:
    """Keep parameters in <dtype>: torch gives their gradients and AdamW's moments the same dtype."""
    <cause>
    for parameter in model.parameters():
        parameter.data = parameter.data.to(<dtype>)
'''


def fsdp(roles: AxisRoles) -> str:
    """Emits apply_fsdp, which calls fully_shard; "" if the plan does not use FSDP."""
    if not roles.uses_fsdp:
        return ""
    dims = _stored_dims(roles)
    policy = _policy(roles.plan)
    mesh = ", ".join(python_string(f.name) for f in roles.factors if f.role in ("replicate", "shard"))
    arguments = [f'"mesh": mesh[{mesh}]', *(['"mp_policy": policy'] if policy else [])]
    arguments += ['"shard_placement_fn": placement'] if dims else []
    arguments += ['"offload_policy": offload'] if roles.plan.state_on_host else []
    arguments += [f'"reshard_after_forward": {roles.plan.gathers_each_pass()}']
    return fill(
        '''
        def apply_fsdp(model: nn.Module, mesh: DeviceMesh<experts_mesh>) -> None:
            """<doc>"""
            <policy>
            <offload>
            <placement>
            <experts>
            <cause>
            <gather>
            <config>
            <groups>
        ''',
        doc=_fsdp_doc(roles),
        experts_mesh=", expert_mesh: DeviceMesh" if roles.experts.own_mesh else "",
        experts=experts.fsdp(
            roles, policy=_dtypes(roles.plan) if policy else [], placed=bool(dims), again=roles.plan.gathers_each_pass()
        ),
        policy=policy,
        offload=_offload(roles.plan),
        placement=_placement(roles, dims) if dims else "",
        cause=because(roles.plan.cause_of_store("optimizer")),
        gather=_why_gathered(roles),
        config=call("config = {", arguments, depth=1),
        groups=_groups(roles),
    )


def _fsdp_doc(roles: AxisRoles) -> str:
    if roles.shard and roles.replicate:
        return "Store state over the shard axes, one group per block; all-reduce gradients over the others."
    if roles.shard:
        return "Store state over the data ranks, one group per block."
    if roles.replicate:
        return "Keep state whole on every rank; all-reduce gradients, one group per block."
    return f"Keep state whole in {roles.state_dtype}, and compute in the policy's dtype."


def _policy(plan: Plan) -> str:
    p = plan.precision
    if {p.compute, p.reduce, plan.store_dtype("params")} == {"fp32"}:
        return ""
    return lines(because(p.cause), call("policy = MixedPrecisionPolicy(", _dtypes(plan), depth=1))


def _dtypes(plan: Plan) -> list[str]:
    p = plan.precision
    return [f"param_dtype={TORCH_DTYPES[p.compute]}", f"reduce_dtype={TORCH_DTYPES[p.reduce]}"]


def _offload(plan: Plan) -> str:
    if not plan.state_on_host:
        return ""
    sentence = next(o for o in plan.offloads if "params" in o.what)
    return lines(because(sentence.cause), "offload = CPUOffloadPolicy(pin_memory=torch.cuda.is_available())")


def _stored_dims(roles: AxisRoles) -> dict[str, int]:
    """Returns the dims on which FSDP shards parameters, by name relative to the block or model; parameters on dim 0 are
    left out."""
    found = {relative(p.param.name): stored_dim(roles, p) for p in roles.sharded.params}
    return {name: dim for name, dim in found.items() if dim}


def _placement(roles: AxisRoles, dims: dict[str, int]) -> str:
    cause = next((p.cause for p in roles.sharded.params if p.on_dim), None)
    return fill(
        """
        <cause>
        <dims>
        inside = {p: n.split(".", 2)[2] if n.startswith("layers.") else n for n, p in model.named_parameters()}
        placement = {p: Shard(dims.get(name, 0)) for p, name in inside.items()}.get
        """,
        cause=because(cause, "" if cause else _why_placed(roles)),
        dims=call("dims = {", [f"{python_string(name)}: {dim}" for name, dim in sorted(dims.items())], depth=1),
    )


def _why_placed(roles: AxisRoles) -> str:
    if any(stored_dim(roles, p) for p in roles.experts.params):
        return "fewer experts than ranks: these are stored over another dimension"
    return "tensor parallelism divides these inside their first dimension"


COMMENTS = {
    "pass": "all-gather in each forward and again in each backward",
    "microbatch": "all-gather once a microbatch: kept from its forward to its backward",
    "step": "all-gather once a step: kept from the first forward to the last backward",
}


def _why_gathered(roles: AxisRoles) -> str:
    """Emits the comment that says when parameters are all-gathered, which `reshard_after_forward` decides."""
    gather = roles.plan.gather
    said = COMMENTS[roles.plan.gather_per_in("")] if roles.shard else ""
    if said and gather is None and roles.plan.store("params") and roles.plan.splits_backward:
        said += ", which a backward in two parts needs"
    return because(gather.cause if gather else None, said)


def _groups(roles: AxisRoles) -> str:
    """Emits the fully_shard calls, one for each group of parameters that are gathered and reduced together."""
    if roles.sharded.tied:
        return lines(
            _block_groups(roles.plan), ENDS_GATHERED_ONCE if roles.plan.gathers_each_pass() else ENDS_IN_ONE_GROUP
        )
    ops = roles.sharded.ops
    first = list(dict.fromkeys(o.op.module for o in ops["first"] if o.op.params))
    last = list(dict.fromkeys(o.op.module for o in ops["last"] if o.op.params))
    return fill(
        """
        <first>
        <blocks>
        <last>
        fully_shard(model, **config)
        <ahead>
        """,
        ahead=fine_tuning.backward_prefetch(roles) if roles.plan.gathers_each_pass() else "",
        blocks=_block_groups(roles.plan),
        first=lines(*(_if_present(roles, m, f"fully_shard(model.{m}, **config)") for m in first)),
        last=_last_group(roles, last),
    )


def _block_groups(plan: Plan) -> str:
    """Emits the FSDP groups of blocks (one block or a bucket of several each), and the plan's prefetch."""
    gather, layers = plan.gather, plan.bucket_layers
    ahead = plan.buckets_ahead(0)
    if gather is None or (layers == 1 and not ahead):
        return BLOCK_GROUPS
    groups = fill(SEVERAL_BLOCKS, layers=str(layers)).strip() if layers > 1 else BLOCK_GROUPS
    if not ahead:
        return lines(because(gather.cause), groups)
    every = f"blocks[::{layers}]" if layers > 1 else "list(model.layers.values())"
    return lines(
        groups, because(gather.cause), fill(PREFETCH, every=every, ahead=str(ahead), after=str(ahead + 1)).strip()
    )


SEVERAL_BLOCKS = """
blocks = list(model.layers.values())
for first in range(0, len(blocks), <layers>):
    fully_shard(blocks[first : first + <layers>], **config)
"""

PREFETCH = """
groups = <every>
for index, group in enumerate(groups):
    group.set_modules_to_forward_prefetch(groups[index + 1 : index + <after>])
    group.set_modules_to_backward_prefetch(groups[max(index - <ahead>, 0) : index][::-1])
"""

BLOCK_GROUPS = """\
for block in model.layers.values():
    fully_shard(block, **config)"""

ENDS_GATHERED_ONCE = """\
# The head uses the embedding's weight: one group of both ends, gathered from the lookup to the head's backward.
fully_shard(model, **(config | {"reshard_after_forward": False}))"""

ENDS_IN_ONE_GROUP = """\
# The head uses the embedding's weight: both ends are one group.
fully_shard(model, **config)"""


def _last_group(roles: AxisRoles, modules: list[str]) -> str:
    tail = ", ".join(f"model.{m}" for m in modules)
    if not roles.plan.gathers_each_pass():
        return _if_present(roles, modules[0], f"fully_shard([{tail}], **config)")
    return lines(
        "# The backward starts with these, so they stay gathered.",
        _if_present(roles, modules[0], f'fully_shard([{tail}], **(config | {{"reshard_after_forward": False}}))'),
    )
