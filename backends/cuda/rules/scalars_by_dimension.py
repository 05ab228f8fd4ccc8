"""A scalar is all-reduced over one mesh dimension after the other; a pipeline also sums the loss.

The gradient norm is taken per mesh, as parameters that tensor parallelism leaves alone lie on a smaller
one. What DTensor reduces there is the vector of the parameters' norms, not their one norm.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from planc.ir.collective import DTYPE_BYTES, Collective
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
        if not axes:
            continue
        if row.tensor != "grad_norm" or factor.role == "pipeline":
            yield changed(row, NAME, **over(row, roles, axes))
            continue
        for norms in _norms(roles, factor, row.stage):
            yield changed(row, NAME, **over(row, roles, axes), buffer_bytes=norms * DTYPE_BYTES["fp32"])


def _norms(roles: Roles, factor: Factor, stage: int) -> list[int]:
    """For each mesh with this dimension that the stage's parameters lie on: how many lie on it."""
    held = sections_on(roles.plan, stage)
    counts: Counter[bool] = Counter()
    for p in roles.sharded.params:
        on_tensor = bool(set(roles.tensor) & {*p.axes(), *p.grad_partial})
        counts[on_tensor] += held.get(p.param.section, 0)
    return [n for on_tensor, n in counts.items() if n and (on_tensor or factor.role != "tensor")]


def _losses_of_stages(roles: Roles, rows: Rows) -> Iterator[Collective]:
    """Only the last stage knows the loss."""
    cause = roles.plan.split.cause if roles.plan.split else None
    for row in rows:
        if row.tensor == "grad_norm" and row.axes == roles.pipeline:
            yield changed(row, NAME, tensor="loss", phase="forward", cause=cause)
