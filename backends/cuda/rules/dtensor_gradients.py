"""DTensor reduces a replicated weight's full gradient before fully_shard shards it.

A norm over a sharded sequence has a replicated weight and a gradient that is partial over the tensor axes. torch
all-reduces the full gradient, in the compute dtype, each time before fully_shard reduces it over the data axes. While
fully_shard only accumulates gradients, in the reduce dtype, the sum stays unreduced. Without fully_shard the emitted
step all-reduces these gradients itself, once.
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
    """Returns the number of gradient reductions in a step: one per backward if each reduces gradients, else one."""
    return roles.plan.microbatches if _reduces_each_backward(roles) else 1


def _reduces_each_backward(roles: AxisRoles) -> bool:
    return roles.uses_fsdp and not roles.pipeline and bool(roles.plan.store("grads"))


def _added_up(roles: AxisRoles) -> bool:
    """True if fully_shard casts gradients to the reduce dtype in order to accumulate them. In a pipeline it does so
    even for one microbatch."""
    several = roles.plan.microbatches > 1 or bool(roles.pipeline)
    return roles.uses_fsdp and not _reduces_each_backward(roles) and several
