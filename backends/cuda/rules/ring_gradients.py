"""Ring attention sums and sends the gradients of keys and values in the plan's reduce dtype."""

from __future__ import annotations

from planc.backends.cuda.analysis.roles import AxisRoles
from planc.backends.cuda.rules.rule import Rows, changed
from planc.ir.collective import DTYPE_BYTES, Collective

NAME = "ring_gradients"


def apply(roles: AxisRoles, rows: Rows) -> Rows:
    reduce = roles.plan.precision.reduce
    return tuple(_in_reduce_dtype(row, reduce) if _is_ring_gradient(roles, row) else row for row in rows)


def _is_ring_gradient(roles: AxisRoles, row: Collective) -> bool:
    """True for gradients of keys and values sent round the ring: no tensor of the op graph has their name."""
    sent = row.op == "send_recv" and set(row.axes) <= set(roles.context)
    return sent and row.tensor not in roles.sharded.model.tensor and row.dtype != roles.plan.precision.reduce


def _in_reduce_dtype(row: Collective, dtype: str) -> Collective:
    elements = row.buffer_bytes / DTYPE_BYTES[row.dtype]
    return changed(row, NAME, dtype=dtype, buffer_bytes=elements * DTYPE_BYTES[dtype])
