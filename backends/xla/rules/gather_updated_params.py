"""With sharded optimizer state and replicated params (ZeRO-1), the updated params are gathered once a step in their
stored dtype.

torch gathers before the first use, in the compute dtype, since its master weights are sharded.
"""

from __future__ import annotations

from planc.backends.xla.rules.rule import Rows, in_dtype
from planc.ir.collective import Collective
from planc.ir.sharding import Sharded

NAME = "gather_updated_params"


def apply(sharded: Sharded, rows: Rows) -> Rows:
    return tuple(
        in_dtype(row, NAME, sharded.plan.store_dtype("params"), phase="optimizer")
        if row.carries == "param" and _stored_whole(sharded, row)
        else row
        for row in rows
    )


def _stored_whole(sharded: Sharded, row: Collective) -> bool:
    return not sharded.param[row.tensor].stored["params"]
