"""With sharded optimizer state and replicated params (ZeRO-1), the updated params are gathered once a step in their
stored dtype.

torch gathers before the first use, in the compute dtype, since its master weights are sharded.
"""

from __future__ import annotations

from planc.backends.xla.rules.rule import Rows, changed
from planc.ir.collective import DTYPE_BYTES, Collective
from planc.ir.sharding import Sharded

NAME = "gather_updated_params"


def apply(sharded: Sharded, rows: Rows) -> Rows:
    return tuple(
        _gather_after_update(sharded, row) if row.carries == "param" and _stored_whole(sharded, row) else row
        for row in rows
    )


def _stored_whole(sharded: Sharded, row: Collective) -> bool:
    return not sharded.param[row.tensor].stored["params"]


def _gather_after_update(sharded: Sharded, row: Collective) -> Collective:
    kept = sharded.plan.store_dtype("params")
    size = row.buffer_bytes / DTYPE_BYTES[row.dtype] * DTYPE_BYTES[kept]
    return changed(row, NAME, phase="optimizer", dtype=kept, buffer_bytes=size)
