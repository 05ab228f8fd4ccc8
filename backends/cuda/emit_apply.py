"""The functions that divide one model or stage: apply_tp, apply_recompute, apply_fsdp."""

from __future__ import annotations

from planc.ir.plan import Plan
from planc.ir.sharding import Sharded
from planc.sharding.replay import names_op

from .models.places import PLACES
from .roles import Keeping, Roles
from .styles import Style, Styler, relative
from .writing import because, call, fill, lines

TORCH_DTYPES = {"fp32": "torch.float32", "bf16": "torch.bfloat16", "fp16": "torch.float16"}


def tensor_parallel(roles: Roles, styler: Styler) -> str:
    """apply_tp, if any axis is of tensor parallelism."""
    if not roles.tensor:
        return ""
    top, block = styler.top(), styler.block()
    return fill(
        '''
        def apply_tp(model: nn.Module, mesh: DeviceMesh) -> None:
            """Divide weights and activations over the tensor axis; the styles issue the collectives."""
            tp = mesh["<axis>"]
            <top>
            <block>
            <clone>
        ''',
        axis=roles.name("tensor"),
        top=lines(_styles("top", top), APPLY_PRESENT if roles.pipeline else APPLY_TOP) if top else "",
        block=lines(_styles("inside", block), APPLY_BLOCKS) if block else "",
        clone=_clone(roles, styler),
    )


APPLY_TOP = "parallelize_module(model, tp, top, src_data_rank=None)"

APPLY_PRESENT = """\
# A stage has only some of these.
present = {path: style for path, style in top.items() if getattr(model, path) is not None}
parallelize_module(model, tp, present, src_data_rank=None)"""

APPLY_BLOCKS = """\
for block in model.layers.values():
    parallelize_module(block, tp, inside, src_data_rank=None)"""


def _styles(name: str, styles: tuple[Style, ...]) -> str:
    """A dict display of paths and styles; neighbours with one reason share its comment."""
    rows: list[str] = []
    said = ""
    for style in styles:
        reason = because(style.cause, style.collective)
        rows.append(reason if reason != said else "")
        said = reason
        arguments = [f"{k}={v}" for k, v in style.arguments]
        rows.append(call(f'"{style.path}": {style.name}(', arguments, tail=",", depth=2))
    return fill(f"{name} = {{\n    <rows>\n}}", rows=lines(*rows))


def _clone(roles: Roles, styler: Styler) -> str:
    """Without it a compiled first block gives the embedding a gradient of zero (torch 2.13)."""
    module = next(o.op.module for o in styler.sharded.ops["first"] if o.op.kind == "embedding")
    hook = f"model.{module}.register_forward_hook(lambda module, inputs, output: output.clone())"
    return lines(
        "# The first block must not be given a view of the collective's output: its gradient would be lost.",
        _if_present(roles, module, hook),
    )


def _if_present(roles: Roles, module: str, line: str) -> str:
    """With a pipeline, only some stages have this module."""
    return f"if model.{module} is not None:\n    {line}" if roles.pipeline else line


def recompute(sharded: Sharded) -> str:
    """apply_recompute, if the plan asks for it."""
    if not sharded.plan.recompute.ops:
        return ""
    whole = sharded.plan.recompute.blocks
    modules = ["block"] if whole else [f"block.{path}" for path in recomputed_modules(sharded)]
    return fill(
        '''
        def apply_recompute(model: nn.Module) -> None:
            """Keep the inputs of <what> only, and run <their> forward again in the backward."""
            <cause>
            again = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
            for block in model.layers.values():
                <wraps>
        ''',
        what="each block" if whole else "these modules",
        their="its" if whole else "their",
        cause=because(sharded.plan.recompute.cause),
        wraps=lines(*(f"{m}.forward = partial(again, {m}.forward)" for m in modules)),
    )


def recomputed_modules(sharded: Sharded) -> list[str]:
    """Paths in a block of the modules whose ops are recomputed."""
    ops = [o.op for o in sharded.ops["block"]]
    chosen = [op for op in ops if any(names_op(w, op) for w in sharded.plan.recompute.ops)]
    places = PLACES.get(sharded.model.family, {})
    return list(dict.fromkeys(relative(places.get(op.name, op.module)) for op in chosen))


def fsdp(roles: Roles) -> str:
    """apply_fsdp, if state is stored divided, gradients are averaged, or computing is in another dtype."""
    if not roles.uses_fsdp:
        return ""
    dims = _stored_dims(roles)
    policy = _policy(roles.plan)
    mesh = ", ".join(f'"{f.name}"' for f in roles.factors if f.role in ("replicate", "shard"))
    arguments = [f'"mesh": mesh[{mesh}]', *(['"mp_policy": policy'] if policy else [])]
    arguments += ['"shard_placement_fn": placement'] if dims else []
    return fill(
        '''
        def apply_fsdp(model: nn.Module, mesh: DeviceMesh) -> None:
            """<doc>"""
            <policy>
            <placement>
            <cause>
            <config>
            <groups>
        ''',
        doc=_fsdp_doc(roles),
        policy=policy,
        placement=_placement(roles, dims) if dims else "",
        cause=because(roles.plan.cause_of_store("optimizer")),
        config=call("config = {", arguments, depth=1),
        groups=_groups(roles),
    )


def _fsdp_doc(roles: Roles) -> str:
    if roles.shard and roles.replicate:
        return "Store state over the shard axes, one group per block; all-reduce gradients over the others."
    if roles.shard:
        return "Store state over the data ranks, one group per block."
    if roles.replicate:
        return "Keep state whole on every rank; all-reduce gradients, one group per block."
    return "Keep state whole in fp32, and compute in the policy's dtype."


def _policy(plan: Plan) -> str:
    p = plan.precision
    if p.compute == "fp32" and p.reduce == "fp32":
        return ""
    arguments = [f"param_dtype={TORCH_DTYPES[p.compute]}", f"reduce_dtype={TORCH_DTYPES[p.reduce]}"]
    return lines(because(p.cause), call("policy = MixedPrecisionPolicy(", arguments, depth=1))


def _stored_dims(roles: Roles) -> dict[str, int]:
    """Linear and embedding modules whose weight a sentence stores over another dimension than the first."""
    return {p.param.name.rsplit(".", 2)[-2]: p.on_dim for p in roles.sharded.params if p.on_dim}


def _placement(roles: Roles, dims: dict[str, int]) -> str:
    stored = next(p for p in roles.sharded.params if p.on_dim)
    return fill(
        """
        <cause>
        <dims>
        named = {p: Shard(dims.get(name.split(".")[-2], 0)) for name, p in model.named_parameters()}
        placement = named.get
        """,
        cause=because(stored.cause),
        dims=call("dims = {", [f'"{module}": {dim}' for module, dim in sorted(dims.items())], depth=1),
    )


SAID = {
    "pass": "all-gather in each forward and again in each backward",
    "microbatch": "all-gather once a microbatch: kept from its forward to its backward",
    "step": "all-gather once a step: kept from the first forward to the last backward",
}


def _groups(roles: Roles) -> str:
    """One fully_shard per group of parameters that are gathered and reduced together."""
    plan, ops = roles.plan, roles.sharded.ops
    per = Keeping.of(plan).gather_per
    first = list(dict.fromkeys(o.op.module for o in ops["first"] if o.op.params))
    last = list(dict.fromkeys(o.op.module for o in ops["last"] if o.op.params))
    tail = ", ".join(f"model.{m}" for m in last)
    return fill(
        """
        <cause>
        <first>
        for block in model.layers.values():
            fully_shard(block, **config, reshard_after_forward=<again>)
        <why>
        <last>
        fully_shard(model, **config, reshard_after_forward=<again>)
        """,
        again=str(per == "pass"),
        cause=because(plan.gather.cause if plan.gather else None, SAID[per] if roles.shard else ""),
        first=lines(*(_if_present(roles, m, _group(f"model.{m}", per == "pass")) for m in first)),
        why="# The backward starts with these, so they stay gathered." if per == "pass" else "",
        last=_if_present(roles, last[0], _group(f"[{tail}]", False)),
    )


def _group(modules: str, again: bool) -> str:
    return f"fully_shard({modules}, **config, reshard_after_forward={again})"
