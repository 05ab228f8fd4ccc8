"""Emits the per-block features other than sharding: attention kernel, recompute, compilation."""

from __future__ import annotations

from planc.backends.common.source_writer import because, call, fill, lines, tuple_of
from planc.backends.cuda.analysis import replays
from planc.backends.cuda.analysis.attention import GROUPED, KERNELS, grouped
from planc.backends.cuda.analysis.module_placements import relative
from planc.backends.cuda.analysis.roles import AxisRoles
from planc.diag.quoting import python_string
from planc.ir.model import Op
from planc.ir.sharding import Sharded
from planc.sharding.recompute import names_op

MASKED = ("efficient", "unfused")
"""Kernels that accept a mask; a sliding window needs one."""

SAVED: dict[str, tuple[str, ...]] = {
    "attention": (
        "_scaled_dot_product_flash_attention.default",
        "_scaled_dot_product_cudnn_attention.default",
        "_scaled_dot_product_efficient_attention.default",
        "_scaled_dot_product_flash_attention_for_cpu.default",
    ),
    "matmul": ("mm.default", "addmm.default", "bmm.default", "linear.default"),
}
"""Aten ops of each op kind whose outputs can be saved: torch's checkpoint policies select ops, not modules."""


def kernel(roles: AxisRoles) -> str:
    """Emits the functions that pin the attention kernel; "" if the plan names no kernel."""
    chosen = roles.plan.attention
    if chosen is None or not wraps_kernel(roles.sharded):
        return ""
    ops = [o.op for kind in roles.sharded.model.blocks for o in roles.sharded.ops[kind]]
    attentions = [op for op in ops if op.kind == "attention"]
    paths = dict.fromkeys(relative(op.module) for op in attentions)
    repeats = chosen.runs not in GROUPED and any(grouped(roles.sharded.model, op) for op in attentions)
    return fill(
        KERNEL,
        repeats=REPEATS.strip() if repeats else "",
        cause=because(chosen.kernel.cause if chosen.kernel else chosen.cause),
        backend=KERNELS[chosen.runs],
        wraps=lines(*(f"block.{p}.forward = partial(with_kernel, block.{p}.forward)" for p in paths)),
    )


def wraps_kernel(sharded: Sharded) -> bool:
    """True if the program pins the SDPA kernel of attention; a ring's emitted code calls its kernel directly."""
    chosen = sharded.plan.attention
    return bool(sharded.attentions) and chosen is not None and chosen.method != "ring" and chosen.runs in KERNELS


KERNEL = '''
def with_kernel(attend: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> torch.Tensor:
    """Run attention on one kernel; raises an error instead of falling back to another."""
    <repeats>
    <cause>
    with sdpa_kernel(SDPBackend.<backend>):
        return attend(*inputs)


def apply_kernel(model: nn.Module) -> None:
    """Pin the kernel of each block's attention."""
    for block in model.layers.values():
        <wraps>
'''


REPEATS = """
# This kernel has no grouped-query attention: repeat keys and values from [B, S, kv_heads, head_dim] to all heads.
inputs = tuple(x.repeat_interleave(inputs[0].shape[2] // x.shape[2], dim=2) for x in inputs)
"""


def selected(sharded: Sharded) -> str:
    """Emits the loop over the blocks that are recomputed: every block, or each Nth with `every N layers`."""
    every = sharded.plan.recompute.every
    if every == 1:
        return "for block in model.layers.values():"
    return f"for block in (block for number, block in model.layers.items() if int(number) % {every} == 0):"


def again(sharded: Sharded) -> str:
    """Emits the assignment `again = ...`: torch's checkpoint function, with a policy for the outputs that it saves."""
    fixed = ["checkpoint", "use_reentrant=False", "preserve_rng_state=False"]
    kinds = () if replays.is_selective(sharded) else saved_op_kinds(sharded)
    if not kinds:
        return call("again = partial(", fixed, depth=1)
    if any(o.ring for kind in sharded.model.blocks for o in sharded.ops[kind]):
        return call("again = partial(", [*fixed, "context_fn=keep_rings"], depth=1)
    names = [f"torch.ops.aten.{name}" for kind in kinds for name in SAVED[kind]]
    return lines(
        call("kept = [", names, depth=1),
        "contexts = partial(create_selective_checkpoint_contexts, kept)",
        call("again = partial(", [*fixed, "context_fn=contexts"], depth=1),
    )


def saved_outputs(sharded: Sharded) -> str:
    """Emits the checkpoint policy of a recompute that saves outputs by module; "" without such a recompute."""
    if not replays.is_selective(sharded):
        return ""
    table: dict[str, tuple[str, ...]] = {}
    for kind in sharded.model.blocks:
        table |= replays.saved_in(sharded, kind)
    kinds = list(dict.fromkeys(table.values()))
    sets = {names: f"{'_AND_'.join(names).upper()}" for names in kinds}
    made = [_op_set(sets[names], names) for names in kinds]
    rows = [f"{python_string(path)}: {sets[names]}" for path, names in table.items()]
    return lines(*made, call("KEPT = {", rows), "\n", OUTPUTS.strip())


def _op_set(name: str, kinds: tuple[str, ...]) -> str:
    return call(f"{name} = {{", [f"torch.ops.{op}" for kind in kinds for op in OPS[kind]])


OPS = {kind: tuple(f"aten.{name}" for name in names) for kind, names in SAVED.items()} | {
    "all_gather": ("_c10d_functional.all_gather_into_tensor.default",),
    "reduce_scatter": ("_c10d_functional.reduce_scatter_tensor.default",),
    "all_reduce": ("_c10d_functional.all_reduce.default",),
}
"""Aten and functional-collective ops of the names in `planc.backends.cuda.analysis.replays`."""

OUTPUTS = '''
class Outputs:
    """Saves the outputs of the ops in `KEPT` inside the modules at its paths; a block's recompute reuses them."""

    def __init__(self, block: nn.Module) -> None:
        self.inside = ""
        for path, module in block.named_modules():
            if path in KEPT:
                module.register_forward_pre_hook(partial(self._enter, path), prepend=True)
                module.register_forward_hook(self._leave)

    def _enter(self, path: str, module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        self.inside = path

    def _leave(self, module: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        self.inside = ""

    def policy(self, context, op, *inputs, **named) -> CheckpointPolicy:
        kept = op in KEPT.get(self.inside, ())
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE
'''


def saved_op_kinds(sharded: Sharded) -> tuple[str, ...]:
    """Returns the op kinds that `recompute blocks except ...` saves, if it names all ops of each of these kinds.

    Raises KeyError if it names only some ops of a kind, or ops that torch's policies cannot select.
    """
    saved = saved_ops(sharded)
    kinds = tuple(dict.fromkeys(op.kind for op in saved))
    if not all(kind in SAVED for kind in kinds) or len(saved) != sum(op.kind in kinds for op in _ops(sharded)):
        raise KeyError(kinds)
    return kinds


def saved_ops(sharded: Sharded) -> list[Op]:
    """Returns the ops that the plan of `sharded` names after `recompute blocks except`: their outputs are saved."""
    return [op for op in _ops(sharded) if any(names_op(word, op) for word in sharded.plan.recompute.kept)]


def _ops(sharded: Sharded) -> list[Op]:
    return [o.op for kind in sharded.model.blocks for o in sharded.ops[kind]]


def compiling(roles: AxisRoles) -> str:
    """Emits apply_compile, which compiles the blocks; "" if the plan does not compile them."""
    sentence = roles.plan.compiled("blocks")
    if sentence is None:
        return ""
    overlaps = [fill(PIECES, cause=because(o.cause), axis=python_string(o.axis)) for o in roles.plan.overlaps]
    mesh = ", mesh: DeviceMesh" if overlaps else ""
    return fill(
        COMPILE,
        method=python_string(sentence.method),
        cause=because(sentence.cause),
        mesh=mesh,
        overlap="\n".join(overlaps),
        region="Compile each block, except modules that stay eager"
        if eager_modules(roles)
        else "Compile each block as one region",
        eager=_left_eager(roles),
        whole="" if eager_modules(roles) else ", fullgraph=True",
    )


def eager_modules(roles: AxisRoles) -> dict[str, str]:
    """Returns the modules that stay eager when blocks are compiled: a map from the path in a block to the reason why
    torch cannot compile the module."""
    found: dict[str, str] = {}
    for kind in roles.sharded.model.blocks:
        for o in roles.sharded.ops[kind]:
            if o.op.kind == "attention" and set(o.layout.get("sequence", ())) & set(roles.context):
                found[relative(o.op.module)] = "keys of other ranks arrive by process group calls, which are not traced"
            if o.op.kind == "route":
                path = relative(o.op.module).split(".")[0]
                found[path] = "the number of rows of an expert is known at run time only, and a graph has fixed shapes"
    return found


def _left_eager(roles: AxisRoles) -> str:
    eager = eager_modules(roles)
    return (
        fill(
            """
        for path, module in block.named_modules():
            if path in <paths>:
                <why>
                module.forward = torch.compiler.disable(module.forward)
        """,
            paths=tuple_of([python_string(path) for path in eager]),
            why=lines(*(f"# {said.capitalize()}." for said in dict.fromkeys(eager.values()))),
        )
        if eager
        else ""
    )


PIECES = """
<cause>
inductor_config._micro_pipeline_tp = True
if mesh.device_type == "cuda":  # symmetric memory needs CUDA devices
    enable_symm_mem_for_group(mesh.get_group(<axis>).group_name)
"""


COMPILE = '''
COMPILER = <method>


def apply_compile(model: nn.Module<mesh>) -> None:
    """<region>."""
    <overlap>
    <cause>
    for block in model.layers.values():
        <eager>
        block.forward = torch.compile(block.forward, backend=COMPILER<whole>)
'''


def recompute_inside(roles: AxisRoles) -> bool:
    """True if recompute wraps a block before it is compiled, so that the compiler sees the recompute.

    torch 2.13 cannot trace a checkpoint around DTensors or around a graph break: there recompute wraps the compiled
    block instead.
    """
    return not roles.tensor and not eager_modules(roles)


def in_order(roles: AxisRoles, module: str) -> list[str]:
    """Returns the calls of apply_kernel, apply_recompute and apply_compile on the argument `module`, in the order that
    `parallelize` needs; "" in place of a call that the plan does not need."""
    plan = roles.plan
    replay = f"apply_recompute({module})" if plan.recompute.ops else ""
    compile_ = f"apply_compile({module}{', mesh' if plan.overlaps else ''})" if plan.compiled("blocks") else ""
    pair = [replay, compile_] if recompute_inside(roles) else [compile_, replay]
    return [f"apply_kernel({module})" if wraps_kernel(roles.sharded) else "", *pair]
