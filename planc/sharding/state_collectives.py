"""Collectives of the state: all-gathers of sharded parameters, reductions of gradients, scalar all-reduces."""

from __future__ import annotations

from collections.abc import Iterator

from planc.ir.base import Cause
from planc.ir.collective import CollectiveOp, Per, Phase
from planc.ir.model import Section
from planc.ir.sharding import ParamSharding, Sharded
from planc.ir.updates import moments_of
from planc.sharding.calls import Call, axis_cause
from planc.sharding.local import param_elements


def state(sharded: Sharded, section: Section) -> Iterator[Call]:
    """Yield the collectives of the parameters and gradients of one block (or other `section` of the model).

    >>> [(c.op, c.axes, c.per) for c in state(sharded, "block") if c.tensor.endswith("w1.weight")]
    [('all_gather', ('fsdp',), 'step'), ('reduce_scatter', ('fsdp',), 'step')]
    """
    for p in sharded.params:
        if section in p.param.sections:
            if section in sharded.model.blocks and _has_end(sharded, p):
                yield from (call for call in _gathers(sharded, p, section) if call.per == "microbatch")
                continue  # a module for further tokens uses the embedding and the head, whose sections have the rest
            yield from _gathers(sharded, p, section)
            again = section == "last" and p.param.section == "first" and sharded.plan.pipeline == 1
            if not again and not p.param.frozen:  # both uses of a tied one add to the same gradient
                yield from _reductions(sharded, p)
                yield from _whole_updates(sharded, p)


def _has_end(sharded: Sharded, p: ParamSharding) -> bool:
    """True if the modules before or after the blocks (embedding, head) use the parameter."""
    return any(s not in sharded.model.blocks for s in p.param.sections)


def _gathers(sharded: Sharded, p: ParamSharding, section: Section) -> Iterator[Call]:
    """Yield the all-gathers of a parameter over the axes that shard it, or that shard the optimizer's master copy. If
    it is gathered once per pass, the backward gathers it too, unless the section has no backward."""
    plan = sharded.plan
    axes = p.stored["params"] or p.stored["optimizer"]
    if not axes:
        return
    back = any(o.op.has_backward for o in sharded.ops[section])
    per = plan.gather_per if p.stored["params"] else "step"
    phases: tuple[Phase, ...] = ("forward", "backward") if per == "pass" and back else ("forward",)
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
            cause=plan.cause_of_store("params" if p.stored["params"] else "optimizer", p.param.region),
        )


def _reductions(sharded: Sharded, p: ParamSharding) -> Iterator[Call]:
    """Yield the reductions of a gradient over the axes over which it is a partial sum: a reduce-scatter if gradients or
    optimizer state are sharded over these axes, else an all-reduce."""
    plan = sharded.plan
    rest = p.stored["grads"] or p.stored["optimizer"]
    per: Per = "microbatch" if p.stored["grads"] else "step"
    elements: float = param_elements(plan, p)
    whole = plan.mesh.in_order(set(p.grad_partial) - set(rest))
    scattered = plan.mesh.in_order(set(p.grad_partial) & set(rest))
    if scattered:
        yield _reduction("reduce_scatter", scattered, p, plan.precision.reduce, elements, per, _grad_cause(sharded, p))
        elements /= plan.mesh.size(*scattered)
    if whole:
        yield _reduction("all_reduce", whole, p, plan.precision.reduce, elements, per, axis_cause(sharded, whole))


def _whole_updates(sharded: Sharded, p: ParamSharding) -> Iterator[Call]:
    """Yield the all-gather of a sharded matrix that Muon orthogonalizes: this needs the full matrix."""
    plan = sharded.plan
    axes = plan.mesh.in_order({*p.axes(), *p.stored["optimizer"]})
    if axes and moments_of(plan, p.param.name) == 1:
        yield Call(
            op="all_gather",
            axes=axes,
            phase="optimizer",
            carries="update",
            tensor=p.param.name,
            dtype=plan.store_dtype("optimizer", p.param.region),
            elements=plan.model.elements(p.param),
            per="step",
            cause=plan.optimizer.cause,
        )


def _reduction(
    op: CollectiveOp,
    axes: tuple[str, ...],
    p: ParamSharding,
    dtype: str,
    elements: float,
    per: Per,
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
    return sharded.plan.cause_of_store("grads" if p.stored["grads"] else "optimizer", p.param.region)


def scalars(sharded: Sharded) -> Iterator[Call]:
    """Yield the all-reduces of the plan in `sharded` for the mean loss over tokens, and for the norm of all gradients.

    >>> [(c.tensor, c.axes) for c in scalars(sharded)]
    [('loss', ('fsdp',)), ('grad_norm', ('pp', 'fsdp', 'tp'))]
    """
    plan = sharded.plan
    losses = [o for ops in sharded.ops.values() for o in ops if o.op.kind == "loss"]
    tokens = plan.mesh.in_order(a for o in losses for d in ("batch", "sequence") for a in o.layout.get(d, ()))
    if tokens:
        yield _scalar("forward", tokens, "loss", axis_cause(sharded, tokens))
    trained = [p for p in sharded.params if not p.param.frozen]
    divided = {a for p in trained for a in (*p.axes(), *(p.stored["grads"] or p.stored["optimizer"]))}
    divided |= {plan.split.axis} if plan.split else set()
    for view in plan.mesh.views:
        if divided & set(view.names):  # the same ranks by other names
            divided = divided - set(view.names) | set(view.of)
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
