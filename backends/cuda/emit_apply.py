"""The functions that divide one model or stage: apply_tp, apply_recompute, apply_fsdp."""

from __future__ import annotations

from planc.ir.plan import Plan
from planc.ir.sharding import Sharded
from planc.sharding.replay import names_op

from .models.places import PLACES
from .roles import Keeping, Roles
from .styles import Style, Styler, relative
from .writing import because, call, comment, lines

TORCH_DTYPES = {"fp32": "torch.float32", "bf16": "torch.bfloat16", "fp16": "torch.float16"}


def tensor_parallel(roles: Roles, styler: Styler) -> list[str]:
    """apply_tp, if any axis is of tensor parallelism."""
    if not roles.tensor:
        return []
    top, block = styler.top(), styler.block()
    doc = "Divide weights and activations over the tensor axis; the styles issue the collectives."
    parts = [
        "def apply_tp(model: nn.Module, mesh: DeviceMesh) -> None:",
        f'    """{doc}"""',
        f'    tp = mesh["{roles.name("tensor")}"]',
    ]
    if top:
        parts += [_plan_dict("top", top), *_apply_top(roles)]
    if block:
        parts += [
            _plan_dict("block_plan", block),
            "    for block in model.layers.values():",
            "        parallelize_module(block, tp, block_plan, src_data_rank=None)",
        ]
    parts += _clone(roles, styler)
    return [lines(*parts)]


def _apply_top(roles: Roles) -> list[str]:
    """A stage of a pipeline holds only some of the modules outside the blocks."""
    if not roles.pipeline:
        return ["    parallelize_module(model, tp, top, src_data_rank=None)"]
    return [
        "    present = {path: style for path, style in top.items() if getattr(model, path) is not None}",
        "    parallelize_module(model, tp, present, src_data_rank=None)",
    ]


def _plan_dict(name: str, styles: tuple[Style, ...]) -> str:
    rows = []
    before: tuple[str, object] | None = None
    for s in styles:
        if (s.collective, s.cause) != before:
            rows.append(because(s.cause, s.collective, indent=2))
        before = (s.collective, s.cause)
        arguments = [f"{k}={v}" for k, v in s.arguments]
        rows.append(call(f'"{s.path}": {s.name}(', arguments, tail=",", indent=2))
    return lines(f"    {name} = {{", *rows, "    }")


def _clone(roles: Roles, styler: Styler) -> list[str]:
    """Without it a compiled first block gives the embedding a gradient of zero (torch 2.13)."""
    embeddings = [o.op for o in styler.sharded.ops["first"] if o.op.kind == "embedding"]
    return [
        line
        for op in embeddings
        for line in (
            comment("A view of the collective's output must not enter the first block: its gradient would be lost.", 1),
            *([f"    if model.{op.module} is not None:"] if roles.pipeline else []),
            ("        " if roles.pipeline else "    ")
            + f"model.{op.module}.register_forward_hook(lambda module, inputs, output: output.clone())",
        )
    ]


def recompute(sharded: Sharded) -> list[str]:
    """apply_recompute, if the plan asks for it."""
    plan = sharded.plan
    if not plan.recompute.ops:
        return []
    again = "partial(again, {}.forward)"
    if plan.recompute.blocks:
        doc = "Each block keeps its input only and runs its forward again in the backward."
        loop = [f"        block.forward = {again.format('block')}"]
    else:
        doc = "The named modules keep their inputs only and run their forward again in the backward."
        loop = [f"        block.{p}.forward = {again.format(f'block.{p}')}" for p in recomputed_modules(sharded)]
    return [
        lines(
            "def apply_recompute(model: nn.Module) -> None:",
            f'    """{doc}"""',
            because(plan.recompute.cause, indent=1),
            "    again = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)",
            "    for block in model.layers.values():",
            *loop,
        )
    ]


def recomputed_modules(sharded: Sharded) -> list[str]:
    """Paths in a block of the modules whose ops are recomputed."""
    ops = [o.op for o in sharded.ops["block"]]
    chosen = [op for op in ops if any(names_op(w, op) for w in sharded.plan.recompute.ops)]
    places = PLACES.get(sharded.model.family, {})
    return list(dict.fromkeys(relative(places.get(op.name, op.module)) for op in chosen))


def fsdp(roles: Roles) -> list[str]:
    """apply_fsdp, if state is stored divided, gradients are averaged, or computing is in another dtype."""
    if not roles.uses_fsdp:
        return []
    plan = roles.plan
    replicate = roles.factor("replicate")
    names = [f'"{f.name}"' for f in (replicate, roles.factor("shard")) if f is not None]
    arguments = [f'"mesh": mesh[{", ".join(names)}]']
    if plan.precision.compute != "fp32" or plan.precision.reduce != "fp32":
        arguments.append('"mp_policy": policy')
    return [
        lines(
            "def apply_fsdp(model: nn.Module, mesh: DeviceMesh) -> None:",
            f'    """{_fsdp_doc(roles)}"""',
            *_policy(plan),
            *_placement(roles),
            because(plan.cause_of_store("optimizer"), indent=1),
            call("config = {", arguments + (['"shard_placement_fn": placement'] if _dims(roles) else []), indent=1),
            *_groups(roles),
        )
    ]


def _fsdp_doc(roles: Roles) -> str:
    if roles.shard and roles.replicate:
        return "Store state over the shard axes; all-reduce gradients over the others."
    if roles.shard:
        return "Store state over the data ranks: one group per block."
    if roles.replicate:
        return "Keep state whole on every rank; all-reduce gradients: one group per block."
    return "Keep state whole, in fp32, and compute in the policy's dtype."


def _policy(plan: Plan) -> list[str]:
    p = plan.precision
    if p.compute == "fp32" and p.reduce == "fp32":
        return []
    arguments = [f"param_dtype={TORCH_DTYPES[p.compute]}", f"reduce_dtype={TORCH_DTYPES[p.reduce]}"]
    return [because(p.cause, indent=1), call("policy = MixedPrecisionPolicy(", arguments, indent=1)]


def _dims(roles: Roles) -> dict[str, int]:
    """Parameters that a sentence stores over another dimension than the first."""
    return {p.param.name: p.on_dim for p in roles.sharded.params if p.on_dim}


def _placement(roles: Roles) -> list[str]:
    dims = _dims(roles)
    if not dims:
        return []
    stored = [p for p in roles.sharded.params if p.on_dim]
    shapes = sorted({(p.param.name.rsplit(".", 2)[-2], p.on_dim) for p in stored if p.on_dim})
    rows = [f'"{module}": {dim}' for module, dim in shapes]
    return [
        because(stored[0].cause, indent=1),
        call("dims = {", rows, indent=1),
        "    named = {p: dims.get(n.split('.')[-2], 0) for n, p in model.named_parameters()}".replace("'", '"'),
        "",
        "    def placement(parameter: nn.Parameter) -> Shard:",
        "        return Shard(named[parameter])",
        "",
    ]


def _groups(roles: Roles) -> list[str]:
    """One fully_shard per group of parameters that are gathered and reduced together."""
    ops = roles.sharded.ops
    keeping = Keeping.of(roles.plan)
    again = keeping.gather_per == "pass"
    gather = roles.plan.gather.cause if roles.plan.gather else None
    first = list(dict.fromkeys(o.op.module for o in ops["first"] if o.op.params))
    last = list(dict.fromkeys(o.op.module for o in ops["last"] if o.op.params))
    said = {
        "pass": "all-gather in each forward and again in each backward",
        "microbatch": "all-gather once a microbatch: kept from its forward to its backward",
        "step": "all-gather once a step: kept from the first forward to the last backward",
    }[keeping.gather_per]
    return [
        because(gather, said if roles.shard else "", indent=1),
        *(_group(roles, m, f"model.{m}", again) for m in first),
        "    for block in model.layers.values():",
        f"        fully_shard(block, **config, reshard_after_forward={again})",
        comment("The backward starts with these, so they stay gathered.", 1) if again else "",
        _group(roles, last[0], f"[{', '.join(f'model.{m}' for m in last)}]", False),
        f"    fully_shard(model, **config, reshard_after_forward={again})",
    ]


def _group(roles: Roles, module: str, modules: str, again: bool) -> str:
    line = f"fully_shard({modules}, **config, reshard_after_forward={again})"
    if not roles.pipeline:
        return f"    {line}"
    return f"    if model.{module} is not None:\n        {line}"
