"""DTensor all-reduces a replicated weight's gradient over the tensor axes, unsharded, before fully_shard shards it.

An example is a norm over a sharded sequence, whose gradient is a partial sum over the tensor axes. torch all-reduces
it, in the compute dtype, before each reduction by fully_shard over the data axes. While fully_shard only accumulates
gradients (in the reduce dtype), they stay partial. Without fully_shard the emitted program all-reduces them once a
step.
"""

from __future__ import annotations

from collections.abc import Iterator

from planc.backends.cuda.analysis.roles import AxisRoles
from planc.backends.cuda.rules.rule import Rows, changed, of_experts, over
from planc.ir.collective import DTYPE_BYTES, Collective
from planc.sharding.local import param_elements
from planc.sharding.stage_assignment import sections_on

NAME = "dtensor_gradients"


def apply(roles: AxisRoles, rows: Rows) -> Rows:
    return tuple(new for row in rows for new in _split(roles, row))


def _split(roles: AxisRoles, row: Collective) -> Iterator[Collective]:
    inside = tuple(a for a in row.axes if a in roles.tensor)
    if row.carries != "grad" or not inside or of_experts(row, roles):
        yield row
        return
    plan = roles.plan
    dtype = plan.precision.reduce if _added_up(roles) else plan.precision.compute
    elements = param_elements(plan, roles.sharded.param[row.tensor])
    yield changed(
        row,
        NAME,
        **over(row, roles, inside),
        phase="backward",
        per="microbatch" if _reduces_each_backward(roles) else "step",
        dtype=dtype,
        count=sections_on(plan, row.stage)[row.section] * _times(roles),
        buffer_bytes=elements * DTYPE_BYTES[dtype],
    )
    outside = tuple(a for a in row.axes if a not in roles.tensor)
    if outside:
        yield changed(row, NAME, **over(row, roles, outside))


def _times(roles: AxisRoles) -> int:
    """Returns the number of times that torch reduces a gradient in a step: once per microbatch, or once."""
    return roles.plan.microbatches if _reduces_each_backward(roles) else 1


def _reduces_each_backward(roles: AxisRoles) -> bool:
    return roles.uses_fsdp and not roles.pipeline and bool(roles.plan.store("grads"))


def _added_up(roles: AxisRoles) -> bool:
    """True if fully_shard accumulates gradients over microbatches, in the reduce dtype. In a pipeline it does so even
    for one microbatch."""
    several = roles.plan.microbatches > 1 or bool(roles.pipeline)
    return roles.uses_fsdp and not _reduces_each_backward(roles) and several
