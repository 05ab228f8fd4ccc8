"""The semantic collectives of a plan: those that any correct program must issue in some form.

Forward moves come from propagation; backward moves are their duals; parameters are gathered from
where they are stored and gradients reduced to where they rest; pipeline stages send activations on.
Rows are per pipeline stage; the repeated block is derived once and counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from planc.ir.base import Cause
from planc.ir.collective import DTYPE_BYTES, Carries, Collective, CollectiveOp, Phase
from planc.ir.model import Section
from planc.ir.sharding import Layout, Move, OpSharding, ParamSharding, Sharded, Step
from planc.sharding.local import local_elements, param_elements
from planc.sharding.redistribute import outside, restrict, steps_between
from planc.sharding.replay import replay
from planc.sharding.stages import boundaries_sent, sections_on


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A collective of one section before it is counted: `per` says how often it happens."""

    op: CollectiveOp
    axes: tuple[str, ...]
    phase: Phase
    carries: Carries
    tensor: str
    dtype: str
    elements: float
    per: str = "microbatch"
    times: int = 1
    cause: Cause | None = None


def semantic_collectives(sharded: Sharded) -> tuple[Collective, ...]:
    """Every collective by stage, phase and tensor, with its calls per optimizer step."""
    plan = sharded.plan
    calls: dict[str, list[Call]] = {
        section: [
            *_forward(sharded, section),
            *_recompute(sharded, section),
            *_backward(sharded, section),
            *_state(sharded, section),
        ]
        for section in sharded.ops
    }
    calls["step"] = list(_scalars(sharded))
    rows = [
        _row(sharded, call, stage, section, copies)
        for stage in range(plan.pipeline)
        for section, copies in sections_on(plan, stage).items()
        for call in calls[section]
    ]
    rows += [row for stage in range(plan.pipeline) for row in _sends(sharded, stage)]
    return tuple(r for r in rows if r.count and r.group_size > 1)


def _row(sharded: Sharded, call: Call, stage: int, section: str, copies: int) -> Collective:
    plan = sharded.plan
    times = plan.microbatches if call.per == "microbatch" else 1
    return Collective(
        op=call.op,
        axes=plan.mesh.in_order(call.axes),
        group_size=plan.mesh.size(*call.axes),
        stage=stage,
        phase=call.phase,
        carries=call.carries,
        tensor=call.tensor,
        section=section,
        dtype=call.dtype,
        count=copies * times * call.times,
        buffer_bytes=call.elements * DTYPE_BYTES[call.dtype],
        cause=call.cause,
    )


# Activations.


def _forward(sharded: Sharded, section: Section, only: frozenset[str] | None = None) -> Iterator[Call]:
    """Moves before and after each op; consumers that need the same layout share one move."""
    seen: set[tuple[str, str]] = set()
    phase: Phase = "forward" if only is None else "recompute"
    for o in sharded.ops[section]:
        if only is not None and o.op.name not in only:
            continue
        for move in o.moves:
            if move is not None and (key := (move.tensor, repr(move.after))) not in seen:
                seen.add(key)
                yield from _calls(sharded, move.steps, move, phase)
        if o.settle is not None:
            yield from _calls(sharded, o.settle.steps, o.settle, phase)
        if only is None and o.op.kind == "loss":
            yield from _loss(sharded, o)


def _recompute(sharded: Sharded, section: Section) -> Iterator[Call]:
    """The forward moves of the ops that run again; a kept tensor is not moved again."""
    if section == "block":
        again = frozenset(replay(sharded.plan).ops)
        if again:
            yield from _forward(sharded, section, again)


def _backward(sharded: Sharded, section: Section) -> Iterator[Call]:
    """The duals. Gradients of one tensor that arrive in one layout are summed before they move."""
    arriving: dict[tuple[str, str], tuple[Layout, set[str], Cause | None]] = {}
    for o in reversed(sharded.ops[section]):
        if o.settle is not None:
            back = steps_between(o.settle.after, (), o.settle.before)
            yield from _calls(sharded, back, _turned(o.settle), "backward")
        for name, move in zip(o.op.inputs, o.moves, strict=True):
            tensor = sharded.model.tensor[name]
            if tensor.dtype == "int":
                continue
            layout = restrict(o.layout, tensor.dims)
            cause = move.cause if move else None
            key = (name, repr(layout))
            known = arriving.setdefault(key, (layout, set(), cause))
            known[1].update(_grad_partial(o, tensor.dims))
    for (name, _), (layout, partial, cause) in arriving.items():
        axes = sharded.plan.mesh.in_order(partial)
        steps = steps_between(layout, axes, sharded.declared(name))
        move = Move(tensor=name, before=layout, partial=axes, after=sharded.declared(name), steps=steps)
        yield from _calls(sharded, steps, move, "backward", cause or _axis_cause(sharded, axes))


def _grad_partial(o: OpSharding, dims: tuple[str, ...]) -> tuple[str, ...]:
    """Axes over which the gradient of an input is an unreduced sum.

    Only an op that mixes dims does this: a matmul sums over its output's divided dims.
    """
    return outside(o.layout, dims) if o.op.kind == "matmul" else ()


def _turned(move: Move) -> Move:
    return Move(tensor=move.tensor, before=move.after, after=move.before, steps=(), cause=move.cause)


def _calls(
    sharded: Sharded, steps: tuple[Step, ...], move: Move, phase: Phase, cause: Cause | None = None
) -> Iterator[Call]:
    """One call per step, following the local size: gathers grow it, scatters shrink it."""
    plan, tensor = sharded.plan, sharded.model.tensor[move.tensor]
    dtype = plan.precision.compute if tensor.dtype == "compute" else "fp32"
    layout = dict(move.before)
    for step in steps:
        before = local_elements(plan, tensor.dims, layout)
        _apply(layout, step)
        after = local_elements(plan, tensor.dims, layout)
        if step.kind == "slice":
            continue
        yield Call(
            op=step.kind,
            axes=step.axes,
            phase=phase,
            carries="activation",
            tensor=move.tensor,
            dtype=dtype,
            elements=max(before, after),
            cause=cause or move.cause,
        )


def _apply(layout: Layout, step: Step) -> None:
    if step.kind in ("all_gather", "all_to_all"):
        layout[step.dim] = tuple(a for a in layout[step.dim] if a not in step.axes)
    target = step.to_dim if step.kind == "all_to_all" else step.dim
    if step.kind != "all_gather" and target:
        layout[target] = (*layout.get(target, ()), *step.axes)


def _loss(sharded: Sharded, o: OpSharding) -> Iterator[Call]:
    """Cross entropy over a divided vocab: the maximum, the sum and the target's logit are reduced."""
    axes = o.layout.get("vocab", ())
    if axes:
        rows = local_elements(sharded.plan, ("batch", "sequence"), o.layout)
        cause = sharded.plan.cause_of_shard("vocab", axes[0], o.op.region)
        yield Call(
            op="all_reduce",
            axes=axes,
            phase="forward",
            carries="activation",
            tensor="loss.rows",
            dtype="fp32",
            elements=rows,
            times=3,
            cause=cause,
        )


# State.


def _state(sharded: Sharded, section: Section) -> Iterator[Call]:
    for p in sharded.params:
        if p.param.section == section:
            yield from _gathers(sharded, p)
            yield from _reductions(sharded, p)


def _gathers(sharded: Sharded, p: ParamSharding) -> Iterator[Call]:
    """Parameters are gathered from the axes they, or the optimizer's masters, are stored over."""
    plan = sharded.plan
    axes = p.stored["params"] or p.stored["optimizer"]
    if not axes:
        return
    per = plan.gather_per if p.stored["params"] else "step"
    phases: tuple[Phase, ...] = ("forward", "backward") if per == "pass" else ("forward",)
    for phase in phases:
        yield Call(
            op="all_gather",
            axes=axes,
            phase=phase,
            carries="param",
            tensor=p.param.name,
            dtype=plan.precision.compute,
            elements=param_elements(plan, p),
            per="step" if per == "step" else "microbatch",
            cause=plan.cause_of_store("params" if p.stored["params"] else "optimizer"),
        )


def _reductions(sharded: Sharded, p: ParamSharding) -> Iterator[Call]:
    """A gradient is a sum over `grad_partial`; it ends where grads, or else the optimizer, rest."""
    plan = sharded.plan
    rest = p.stored["grads"] or p.stored["optimizer"]
    per = "microbatch" if p.stored["grads"] else "step"
    elements: float = param_elements(plan, p)
    whole = plan.mesh.in_order(set(p.grad_partial) - set(rest))
    scattered = plan.mesh.in_order(set(p.grad_partial) & set(rest))
    if scattered:
        yield _reduction("reduce_scatter", scattered, p, plan.precision.reduce, elements, per, _grad_cause(sharded, p))
        elements /= plan.mesh.size(*scattered)
    if whole:
        yield _reduction("all_reduce", whole, p, plan.precision.reduce, elements, per, _axis_cause(sharded, whole))


def _reduction(
    op: CollectiveOp,
    axes: tuple[str, ...],
    p: ParamSharding,
    dtype: str,
    elements: float,
    per: str,
    cause: Cause | None,
) -> Call:
    return Call(
        op=op,
        axes=axes,
        phase="backward" if per == "microbatch" else "optimizer",
        carries="grad",
        tensor=p.param.name,
        dtype=dtype,
        elements=elements,
        per=per,
        cause=cause,
    )


def _grad_cause(sharded: Sharded, p: ParamSharding) -> Cause | None:
    return sharded.plan.cause_of_store("grads" if p.stored["grads"] else "optimizer")


def _axis_cause(sharded: Sharded, axes: tuple[str, ...]) -> Cause | None:
    return next((s.cause for s in sharded.plan.shards if set(axes) & set(s.axes)), None)


def _scalars(sharded: Sharded) -> Iterator[Call]:
    """The loss's mean over the batch and the gradient norm over everything that divides state."""
    plan = sharded.plan
    if plan.data_axes:
        cause = plan.cause_of_shard("batch", plan.data_axes[0])
        yield _scalar("forward", plan.data_axes, "loss", cause)
    divided = {a for p in sharded.params for a in (*p.axes(), *(p.stored["grads"] or p.stored["optimizer"]))}
    divided |= {plan.split.axis} if plan.split else set()
    axes = plan.mesh.in_order(divided)
    if axes:
        yield _scalar("optimizer", axes, "grad_norm", None)


def _scalar(phase: Phase, axes: tuple[str, ...], tensor: str, cause: Cause | None) -> Call:
    return Call(
        op="all_reduce",
        axes=axes,
        phase=phase,
        carries="scalar",
        tensor=tensor,
        dtype="fp32",
        elements=1,
        per="step",
        cause=cause,
    )


# The pipeline.


def _sends(sharded: Sharded, stage: int) -> Iterator[Collective]:
    """Hidden states forward and their gradients backward, once per boundary and microbatch."""
    plan = sharded.plan
    if plan.split is None:
        return
    last = sharded.ops["block"][-1].op.output
    layout = sharded.declared(last)
    elements = local_elements(plan, sharded.model.tensor[last].dims, layout)
    sends: tuple[tuple[Phase, int], ...] = (
        ("forward", boundaries_sent(plan, stage, forward=True)),
        ("backward", boundaries_sent(plan, stage, forward=False)),
    )
    for phase, count in sends:
        yield Collective(
            op="send_recv",
            axes=(plan.split.axis,),
            group_size=plan.pipeline,
            stage=stage,
            phase=phase,
            carries="activation",
            tensor=last,
            section="step",
            dtype=plan.precision.compute,
            count=count * plan.microbatches,
            buffer_bytes=elements * DTYPE_BYTES[plan.precision.compute],
            cause=plan.split.cause,
        )
