"""Collectives of activations: redistributions in the forward and the recompute, and their duals (such as reduce-scatter
for all-gather) in the backward."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from planc.ir.base import Cause
from planc.ir.cache import cached_on
from planc.ir.collective import Phase
from planc.ir.model import ROUTED, Section
from planc.ir.plan import Plan
from planc.ir.sharding import Layout, Move, OpSharding, RedistributionStep, Sharded, StepKind
from planc.sharding.calls import Call, axis_cause
from planc.sharding.dispatch import copies_share
from planc.sharding.local import local_elements
from planc.sharding.recompute import replay
from planc.sharding.redistribute import outside, steps_between

ActivationPhase = Literal["forward", "recompute", "backward"]
PHASES: tuple[ActivationPhase, ...] = ("forward", "recompute", "backward")


def activation_calls(sharded: Sharded, section: Section, phase: ActivationPhase) -> Iterator[Call]:
    """Yield the activation collectives of one block (or other `section` of the model), for one microbatch and `phase`.

    >>> [(c.op, c.axes, c.tensor) for c in activation_calls(sharded, "block", "forward")][:2]
    [('all_gather', ('tp',), 'attention.in'), ('reduce_scatter', ('tp',), 'attention.out')]
    """
    if phase == "forward":
        return forward(sharded, section)
    return recompute(sharded, section) if phase == "recompute" else backward(sharded, section)


def forward(sharded: Sharded, section: Section, only: frozenset[str] | None = None) -> Iterator[Call]:
    """Yield the forward's activation collectives of one block (or other `section` of the model). Ops that read a tensor
    in the same layout share one redistribution. `only` names the recomputed ops to include; None: all ops."""
    seen: set[tuple[str, str]] = set()
    phase: Phase = "forward" if only is None else "recompute"
    for o in sharded.ops[section]:
        if only is not None and o.op.name not in only:
            continue
        for move in o.redistributions:
            if move is not None and (key := (move.tensor, repr(move.after))) not in seen:
                seen.add(key)
                yield from _calls(sharded, move.steps, move, phase)
        if o.settle is not None:
            yield from _calls(sharded, o.settle.steps, o.settle, phase)
        if o.ring:
            yield from _ring(sharded, o, phase)
        if only is None and o.op.kind == "loss":
            yield from _loss(sharded, o, section)


def recompute(sharded: Sharded, section: Section) -> Iterator[Call]:
    """Yield the activation collectives of the ops in a `section` that the backward recomputes; none outside blocks."""
    if section in sharded.model.blocks:
        again = frozenset(replay(sharded.plan, section).ops)
        if again:
            yield from forward(sharded, section, again)


def backward(sharded: Sharded, section: Section) -> Iterator[Call]:
    """Yield the backward's activation collectives of one block (or other `section`): the duals of the forward's.
    Gradients of a tensor that have the same layout are added first, and then redistributed."""
    for o in reversed(sharded.ops[section]):
        if not o.op.has_backward:
            continue
        if o.settle is not None:
            back = steps_between(o.settle.after, (), o.settle.before)
            yield from _calls(sharded, back, _reversed(o.settle), "backward")
        if o.ring:
            yield from _ring(sharded, o, "backward")
    for move in _moving_gradients(sharded, section):
        yield from _calls(sharded, move.steps, move, "backward")


@cached_on(lambda sharded, section: (sharded.layout_cache, section))
def _moving_gradients(sharded: Sharded, section: Section) -> list[Move]:
    """Return the redistributions of gradients that need a collective or a slice."""
    return [move for move in _gradients(sharded, section) if move.steps]


def _gradients(sharded: Sharded, section: Section) -> Iterator[Move]:
    """Yield the redistribution of each tensor's gradient: from the layout that the op computes to the declared
    layout."""
    arriving: dict[tuple[str, str], tuple[Layout, set[str], Cause | None]] = {}
    for o in reversed(sharded.ops[section]):
        for name, move in zip(o.op.inputs, o.redistributions, strict=True):
            tensor = sharded.model.tensor[name]
            if tensor.dtype == "int" or name in o.op.fixed:
                continue
            layout = o.needs(name, tensor.dims)
            cause = move.cause if move else None
            _, partial, _ = arriving.setdefault((name, repr(layout)), (layout, set(), cause))
            partial.update(_grad_partial(o, name, tensor.dims))
    for (name, _), (layout, partial, cause) in arriving.items():
        axes, home = sharded.plan.mesh.in_order(partial), sharded.declared(name)
        yield Move(
            tensor=name,
            before=layout,
            partial=axes,
            after=home,
            steps=steps_between(layout, axes, home),
            cause=cause or axis_cause(sharded, axes),
        )


def _grad_partial(o: OpSharding, name: str, dims: tuple[str, ...]) -> tuple[str, ...]:
    """Return the axes over which the gradient of the op's input `name` is a partial sum.

    In a matmul, these shard output dims that the input lacks. In attention, they shard the queries and query heads that
    read a key. Ring attention sums a key's gradient on its way around the ring, so no partial sum is left.
    """
    if o.op.kind == "matmul":
        return outside(o.layout, dims)
    whole = () if o.ring else o.op.whole_of.get(name, ())
    rows = tuple(a for d in whole for a in o.layout.get(d, ()))
    return (*rows, *shared_over(o, dims)) if o.op.kind == "attention" else rows


def shared_over(o: OpSharding, dims: tuple[str, ...]) -> tuple[str, ...]:
    """Return the axes that shard the query heads of attention but not its keys. `dims` are the dims of the keys."""
    held = {a for d in dims for a in o.layout.get(d, ())}
    return tuple(a for a in outside(o.layout, dims) if a not in held)


def _ring(sharded: Sharded, o: OpSharding, phase: Phase) -> Iterator[Call]:
    """Yield ring attention's sends over n ranks: n - 1 of keys and values, and in the backward n of their gradients.

    Source: Liu et al. 2023, "Ring Attention with Blockwise Transformers".
    """
    plan, model = sharded.plan, sharded.model
    members = plan.mesh.size(*o.ring)
    for name in o.op.whole_of:
        elements = local_elements(plan, model.tensor[name].dims, o.needs(name, model.tensor[name].dims))
        call = Call(
            op="send_recv",
            axes=o.ring,
            phase=phase,
            carries="activation",
            tensor=name,
            dtype=plan.precision.compute,
            elements=elements,
            times=members - 1,
            cause=plan.attention.cause if plan.attention else None,
        )
        yield call
        if phase == "backward":
            yield replace(call, tensor=f"{name} gradient", times=members)


def _reversed(move: Move) -> Move:
    return Move(tensor=move.tensor, before=move.after, after=move.before, steps=(), cause=move.cause)


def _calls(sharded: Sharded, steps: tuple[RedistributionStep, ...], move: Move, phase: Phase) -> Iterator[Call]:
    """Yield one collective per step of a redistribution, with the elements of the larger of its local input and output.
    A slice needs no collective; programs slice before an all-to-all, which then sends less."""
    plan, tensor = sharded.plan, sharded.model.tensor[move.tensor]
    dtype = plan.precision.compute if tensor.dtype == "compute" else "fp32"
    layout = dict(move.before)
    for step in sorted(steps, key=lambda step: _SIZED.index(step.kind)):
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
            elements=max(before, after) * _copies(plan, tensor.region, step),
            cause=move.cause,
        )


_SIZED: tuple[StepKind, ...] = ("reduce_scatter", "all_reduce", "slice", "all_to_all", "all_gather")


def _copies(plan: Plan, region: str, step: RedistributionStep) -> float:
    """Return the share of token copies that an all-to-all to experts sends (see `copies_share`); 1 for other steps."""
    return copies_share(plan, step.axes) if region == ROUTED and step.kind == "all_to_all" else 1.0


def _apply(layout: Layout, step: RedistributionStep) -> None:
    if step.kind in ("all_gather", "all_to_all"):
        layout[step.dim] = tuple(a for a in layout[step.dim] if a not in step.axes)
    target = step.to_dim if step.kind == "all_to_all" else step.dim
    if step.kind != "all_gather" and target:
        layout[target] = (*layout.get(target, ()), *step.axes)


def _loss(sharded: Sharded, o: OpSharding, section: Section) -> Iterator[Call]:
    """Yield the all-reduces of cross entropy over a sharded vocab: of the maximum, the sum and the target's logit, for
    each chunk of the tokens."""
    axes = o.layout.get("vocab", ())
    if axes:
        chunks = sharded.plan.loss_chunks if section == "last" else 1
        rows = local_elements(sharded.plan, ("batch", "sequence"), o.layout) / chunks
        cause = sharded.plan.cause_of_shard("vocab", axes[0], o.op.region)
        yield Call(
            op="all_reduce",
            axes=axes,
            phase="forward",
            carries="activation",
            tensor="loss.rows",
            dtype="fp32",
            elements=rows,
            times=3 * chunks,
            cause=cause,
        )
