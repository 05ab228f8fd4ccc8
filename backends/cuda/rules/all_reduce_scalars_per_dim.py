"""The loss and the gradient norm are all-reduced over one mesh dimension after another; a pipeline also sums the loss.

There is one gradient norm per mesh: parameters without tensor parallelism are on a smaller mesh, and experts may have
their own. DTensor all-reduces the vector of the norms of all parameters, not one number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from planc.backends.cuda.analysis.roles import AxisRoles, Factor
from planc.backends.cuda.rules.rule import Rows, changed, over
from planc.ir.collective import DTYPE_BYTES, Collective
from planc.ir.sharding import ParamSharding
from planc.sharding.stage_assignment import copies_on, sections_on

NAME = "all_reduce_scalars_per_dim"


def apply(roles: AxisRoles, rows: Rows) -> Rows:
    kept = tuple(new for row in rows for new in (_split(roles, row) if row.carries == "scalar" else (row,)))
    return kept if not roles.pipeline else (*kept, *_losses_of_stages(roles, kept))


def _split(roles: AxisRoles, row: Collective) -> Iterator[Collective]:
    dividing = _dividing(roles) if row.tensor == "grad_norm" else set(row.axes)
    for factor in (*(f for f in roles.factors if f.role != "tensor"), *roles.tensor_meshes):
        axes = tuple(a for a in factor.axes if a in dividing)
        if not axes:
            continue
        if row.tensor != "grad_norm" or factor.role == "pipeline":
            yield changed(row, NAME, **over(row, roles, axes))
            continue
        for norms in _norms(roles, factor, row.stage):
            yield changed(row, NAME, **over(row, roles, axes), buffer_bytes=norms * DTYPE_BYTES["fp32"])
    if row.tensor == "grad_norm":
        yield from _of_experts(roles, row)


def _dividing(roles: AxisRoles) -> set[str]:
    """Returns the axes that shard gradients, without those that shard only experts on their own mesh."""
    rest = [p for p in roles.sharded.params if not apart(roles, p) and not p.param.frozen]
    return {a for p in rest for a in (*p.axes(), *(p.stored["grads"] or p.stored["optimizer"]))} | {*roles.pipeline}


def apart(roles: AxisRoles, p: ParamSharding) -> bool:
    return roles.experts.own_mesh and p in roles.experts.params


def _of_experts(roles: AxisRoles, row: Collective) -> Iterator[Collective]:
    """Yields the all-reduces of the norm of experts on their own mesh, one for each dimension that shards them."""
    experts = roles.experts
    held = sections_on(roles.plan, row.stage)
    trained = [p.param for p in experts.params if experts.own_mesh and not p.param.frozen]
    norms = sum(copies_on(roles.plan, param, held) for param in trained)
    for axes in (experts.shard, experts.exchange, experts.tensor):
        if axes and norms:
            yield changed(row, NAME, **over(row, roles, axes), buffer_bytes=norms * DTYPE_BYTES["fp32"])


def _norms(roles: AxisRoles, factor: Factor, stage: int) -> list[int]:
    """Returns the number of parameters on this stage, for each mesh that has the dimension `factor`."""
    held = sections_on(roles.plan, stage)
    counts: Counter[tuple[str, ...]] = Counter()
    for p in roles.sharded.params:
        if p.param.frozen or apart(roles, p) or _counted_by_first_stage(roles, p, held):
            continue
        used = _mesh_of_module(roles, p)
        counts[roles.tensor_part(used) if used else ()] += copies_on(roles.plan, p.param, held)
    return [n for part, n in counts.items() if n and (factor.role != "tensor" or part == factor.axes)]


def _mesh_of_module(roles: AxisRoles, p: ParamSharding) -> set[str]:
    """Returns the tensor axes of the mesh of `p`: a replicated bias is on the mesh of its module's sharded weight."""
    module = p.param.name.rpartition(".")[0]
    beside = [q for q in roles.sharded.params if q.param.name.rpartition(".")[0] == module]
    return set(roles.tensor) & {a for q in beside for a in (*q.axes(), *q.grad_partial)}


def _counted_by_first_stage(roles: AxisRoles, p: ParamSharding, held: Mapping[str, int]) -> bool:
    """True for the last stage's copy of a tied weight, which the gradient norm leaves out."""
    return bool(roles.pipeline) and p in roles.sharded.tied and "first" not in held


def _losses_of_stages(roles: AxisRoles, rows: Rows) -> Iterator[Collective]:
    """Yields the all-reduces of the loss over the pipeline, because only the last stage has a loss."""
    cause = roles.plan.split.cause if roles.plan.split else None
    for row in rows:
        if row.tensor == "grad_norm" and row.axes == roles.pipeline:
            yield changed(row, NAME, tensor="loss", phase="forward", cause=cause)
