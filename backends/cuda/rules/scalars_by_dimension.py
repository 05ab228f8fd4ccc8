"""A scalar is all-reduced over one mesh dimension after the other; a pipeline also sums the loss.

The gradient norm is taken per mesh: parameters that tensor parallelism leaves alone lie on a smaller
one, which costs them an all-reduce of their own.
"""

from __future__ import annotations

from collections.abc import Iterator

from planc.ir.collective import Collective
from planc.ir.sharding import ParamSharding
from planc.sharding.stages import sections_on

from ..roles import Factor, Roles
from .rule import Rows, changed, over

NAME = "scalars_by_dimension"


def apply(roles: Roles, rows: Rows) -> Rows:
    kept = tuple(new for row in rows for new in (_split(roles, row) if row.carries == "scalar" else (row,)))
    return kept if not roles.pipeline else (*kept, *_losses_of_stages(roles, kept))


def _split(roles: Roles, row: Collective) -> Iterator[Collective]:
    for factor in roles.factors:
        axes = tuple(a for a in row.axes if a in factor.axes)
        if axes:
            count = _meshes(roles, factor, row.stage) if row.tensor == "grad_norm" else row.count
            yield changed(row, NAME, **over(row, roles, axes), count=count)


def _meshes(roles: Roles, factor: Factor, stage: int) -> int:
    """How many of the meshes that this stage's parameters lie on have this dimension."""
    if factor.role == "pipeline":
        return 1
    held = sections_on(roles.plan, stage)
    kinds = {_on_tensor(roles, p) for p in roles.sharded.params if p.param.section in held}
    return sum(kinds) if factor.role == "tensor" else len(kinds)


def _on_tensor(roles: Roles, p: ParamSharding) -> bool:
    """Whether a parameter is a DTensor over the tensor axes."""
    return bool(set(roles.tensor) & {*p.axes(), *p.grad_partial})


def _losses_of_stages(roles: Roles, rows: Rows) -> Iterator[Collective]:
    """Only the last stage knows the loss."""
    norms = [r for r in rows if r.tensor == "grad_norm" and r.axes == roles.pipeline]
    for row in norms:
        yield changed(row, NAME, tensor="loss", phase="forward", cause=roles.plan.split and roles.plan.split.cause)
