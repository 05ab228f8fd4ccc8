"""Sharding propagation: derives the layout of every op and parameter of a model from a plan's sentences.

Each op computes over an index space of named dims, sharded by the sentences for its part of the model. If an input has
a layout that the op cannot use, a redistribution is inserted before the op. If the op contracts a sharded dim, its
output is a partial sum, which is reduced into the output's declared layout. No parallelism strategy is special-cased.
"""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase

from planc.frameworks import stack_of
from planc.ir.base import Cause
from planc.ir.cache import cached_on
from planc.ir.checked import CheckedPlan
from planc.ir.model import Op, Param
from planc.ir.plan import NOUNS, Override, Plan
from planc.ir.sharding import Layout, Move, OpSharding, ParamSharding, Sharded
from planc.sharding.redistribute import outside, restrict, steps_between

CONTRACTING = ("matmul", "embedding")
"""Kinds of op that sum over the dims that their output lacks."""


def propagate(checked: CheckedPlan) -> Sharded:
    """Return `checked` with the layout of every op and parameter."""
    plan = checked.plan
    ops = {section: tuple(_op(plan, op) for op in ops) for section, ops in plan.model.ops.items()}
    used = {p: o for section in ops.values() for o in section for p in o.op.params}
    params = tuple(_param(plan, param, used[param.name]) for param in plan.model.params)
    return Sharded(plan=plan, ops=ops, params=params, stack=stack_of(plan))


def index_layout(plan: Plan, op: Op) -> Layout:
    """Return the axes that shard each dim of the inputs, parameters and output of `op`. Dims that the op needs in full
    (`op.whole`) have none. An `override` sentence for a parameter takes precedence."""
    dims = index_dims(plan, op)
    layout = {d: plan.axes_of(d, _region(op, d)) for d in dims if d not in op.whole}
    for name in op.params:
        override = override_of(plan, plan.model.param[name])
        if override is not None:
            stored = set(plan.store("params", op.region))
            for d in plan.model.param[name].dims:
                layout[d] = tuple(a for a in override.layout.get(d, ()) if a not in stored)
    return {d: axes for d, axes in layout.items() if axes}


def _region(op: Op, dim: str) -> str:
    """Return the part of the model (such as `attention`) whose `shard` sentences apply to `dim` in an op. For batch and
    sequence in the ops that dispatch and combine tokens, it is the residual stream."""
    return "residual" if op.kind in ("route", "combine") and dim in ("batch", "sequence") else op.region


def index_dims(plan: Plan, op: Op) -> tuple[str, ...]:
    """Return every dim of the inputs, parameters and output of `op`, in order of appearance."""
    model = plan.model
    groups = [model.tensor[t].dims for t in op.inputs]
    groups += [model.param[p].dims for p in op.params]
    groups.append(model.tensor[op.output].dims)
    return tuple(dict.fromkeys(d for dims in groups for d in dims))


def override_of(plan: Plan, param: Param) -> Override | None:
    """Return the last override of `plan` whose glob matches parameter `param` (with or without its `.weight`); None if
    none does."""
    return _overrides(plan, param.name) if plan.overrides else None


@cached_on(lambda plan, name: (plan.cache, name))
def _overrides(plan: Plan, name: str) -> Override | None:
    short = name.removesuffix(".weight")
    backwards = reversed(plan.overrides)
    return next((o for o in backwards if fnmatchcase(name, o.glob) or fnmatchcase(short, o.glob)), None)


def _op(plan: Plan, op: Op) -> OpSharding:
    layout = index_layout(plan, op)
    tensor = plan.model.tensor
    bare = OpSharding(op=op, layout=layout, redistributions=(), ring=_ring(plan, op, layout))
    redistributions = tuple(
        _redistribution(plan, name, _declared(plan, name), (), bare.needs(name, tensor[name].dims), op.region)
        for name in op.inputs
    )
    dims = tensor[op.output].dims
    partial = outside(layout, dims) if op.kind in CONTRACTING else ()
    settle = _redistribution(plan, op.output, restrict(layout, dims), partial, _declared(plan, op.output), op.region)
    return replace(bare, redistributions=redistributions, partial=partial, settle=settle)


def _ring(plan: Plan, op: Op, layout: Layout) -> tuple[str, ...]:
    """Return the axes over which ring attention passes keys and values; () for any other op or method."""
    wanted = op.kind == "attention" and plan.attention is not None and plan.attention.method == "ring"
    return layout.get("sequence", ()) if wanted else ()


def _declared(plan: Plan, tensor: str) -> Layout:
    t = plan.model.tensor[tensor]
    return {d: axes for d in t.dims if (axes := plan.axes_of(d, t.region))}


def _redistribution(
    plan: Plan, tensor: str, before: Layout, partial: tuple[str, ...], after: Layout, region: str
) -> Move | None:
    steps = steps_between(before, partial, after)
    if not steps:
        return None
    cause = _cause(plan, steps[0].axes[0], before, after, region)
    return Move(tensor=tensor, before=before, partial=partial, after=after, steps=steps, cause=cause)


def _cause(plan: Plan, axis: str, before: Layout, after: Layout, region: str) -> Cause | None:
    """Return the `shard` sentence that causes a redistribution over `axis`; None if there is none."""
    scoped = [s for s in plan.shards if axis in s.axes and s.region]
    for shard in scoped:
        if axis in before.get(shard.dim, ()) or axis in after.get(shard.dim, ()):
            return shard.cause
    return next((s.cause for s in plan.shards if axis in s.axes and s.region in ("", region)), None)


def _param(plan: Plan, param: Param, user: OpSharding) -> ParamSharding:
    override = override_of(plan, param)
    compute = tuple(tuple(a for d in group for a in user.layout.get(d, ())) for group in param.shape_dims)
    on_dim, cause = _stored_dim(plan, param, override)
    inside = {a for group in compute for a in group}
    return ParamSharding(
        param=param,
        compute=compute,
        grad_partial=tuple(a for a in outside(user.layout, param.dims) if a not in inside),
        stored={n: tuple(a for a in plan.store(n, param.region) if a not in inside) for n in NOUNS},
        on_dim=on_dim,
        cause=cause,
    )


def _stored_dim(plan: Plan, param: Param, override: Override | None) -> tuple[int | None, Cause | None]:
    """Return the index of the array dim on which a sentence of the plan shards the stored parameter (None: no sentence
    names a dim), and the `override` or `store` sentence for the parameter."""
    named = next((s.dim for s in plan.stores if s.noun == "params" and s.dim and s.region in ("", param.region)), "")
    if override is not None:
        stored = set(plan.store("params", param.region))
        named = next((d for d, axes in override.layout.items() if stored & set(axes)), named)
    cause = override.cause if override is not None else plan.cause_of_store("params", param.region)
    index = next((i for i, group in enumerate(param.shape_dims) if named in group), None)
    return index, cause
