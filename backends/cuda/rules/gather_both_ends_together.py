"""A tied embedding is gathered and reduced once, in one FSDP group with the last norm.

fully_shard does not allow a parameter in two groups: the emitted program puts embedding and head into the model's own
group, which is gathered when the forward starts and freed when the backward ends. In a pipeline, the first and the last
stage each have a copy of the weight: the gradients of both are summed in the state's dtype, and the gradient norm
counts the first stage's copy only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from planc.backends.cuda.analysis.fsdp_shard_dim import stored_over
from planc.backends.cuda.analysis.roles import AxisRoles
from planc.backends.cuda.rules.pad_dim0 import padded_elements
from planc.backends.cuda.rules.rule import Rows, changed, of_state
from planc.ir.collective import DTYPE_BYTES, Collective
from planc.sharding.local import param_elements

NAME = "gather_both_ends_together"


def apply(roles: AxisRoles, rows: Rows) -> Rows:
    if not roles.sharded.tied:
        return rows
    return tuple(new for row in rows for new in _realised(roles, row))


def _realised(roles: AxisRoles, row: Collective) -> Iterator[Collective]:
    tied = row.tensor in {p.param.name for p in roles.sharded.tied}
    if tied and row.carries == "grad" and row.section == "step":
        yield _between_ends(roles, row)
    elif roles.pipeline or row.section not in ("first", "last") or not of_state(row, roles):
        yield row
    elif row.carries == "grad":
        yield replace(row, section="first")
    elif row.phase == "forward" and not (tied and row.section == "last"):
        yield changed(row, NAME, section="first")


def _between_ends(roles: AxisRoles, row: Collective) -> Collective:
    """Returns `row`, the sum of a tied gradient over the first and last stage, with torch's dtype and bytes: those of
    the rank with the largest FSDP shard."""
    p = roles.sharded.param[row.tensor]
    elements = param_elements(roles.plan, p)
    if roles.uses_fsdp:
        elements = padded_elements(roles, row.tensor) // roles.plan.mesh.size(*stored_over(roles, p))
    dtype = roles.state_dtype
    return changed(row, NAME, dtype=dtype, buffer_bytes=elements * DTYPE_BYTES[dtype])
