"""fully_shard pads the dim of a parameter that it shards, on each tensor-parallel rank, to divide evenly."""

from __future__ import annotations

from math import ceil

from planc.backends.cuda.analysis.fsdp_shard_dim import stored_dim, stored_over
from planc.backends.cuda.analysis.roles import AxisRoles
from planc.backends.cuda.rules.rule import Rows, changed, of_state
from planc.ir.cache import cached_on
from planc.ir.collective import DTYPE_BYTES, Collective
from planc.ir.sharding import ParamSharding
from planc.sharding.local import param_elements

NAME = "pad_dim0"


def apply(roles: AxisRoles, rows: Rows) -> Rows:
    return tuple(_padded(roles, row) if of_state(row, roles) else row for row in rows)


def _padded(roles: AxisRoles, row: Collective) -> Collective:
    """Returns `row` with the bytes of padded parameters; in an all-reduce over replicas, those of one FSDP shard."""
    elements = padded_elements(roles, row.tensor)
    if row.op == "all_reduce":
        elements //= roles.plan.mesh.size(*stored_over(roles, roles.sharded.param[row.tensor]))
    return changed(row, NAME, buffer_bytes=elements * DTYPE_BYTES[row.dtype])


@cached_on(lambda roles, param: (roles.sharded.cache, param))
def padded_elements(roles: AxisRoles, param: str) -> int:
    """Returns the number of elements of the parameter `param` on one tensor-parallel rank, with the dim that FSDP
    shards padded to divide over the shard axes."""
    plan, p = roles.plan, roles.sharded.param[param]
    parts = plan.mesh.size(*stored_over(roles, p))
    rows = _rows(roles, p)
    return param_elements(plan, p) // rows * ceil(rows / parts) * parts


def rows_on_rank(roles: AxisRoles, param: str, place: int) -> int:
    """Returns the length of the FSDP shard of parameter `param` on the rank with index `place` in the shard axes. The
    last ranks have shorter shards, or none."""
    p = roles.sharded.param[param]
    rows = _rows(roles, p)
    each = ceil(rows / roles.plan.mesh.size(*stored_over(roles, p)))
    return max(0, min(each, rows - place * each))


def _rows(roles: AxisRoles, p: ParamSharding) -> int:
    """Returns the length of the dim that FSDP shards, on one tensor-parallel rank."""
    dim = stored_dim(roles, p)
    return ceil(roles.sharded.model.shape(p.param)[dim] / roles.plan.mesh.size(*p.compute[dim]))
