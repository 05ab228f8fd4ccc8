"""Only `linear` casts a parameter before it is gathered: embeddings and norms are gathered in fp32.

Their gradients are then sums in fp32 too, without a backward of their own.
"""

from __future__ import annotations

from planc.backends.xla.rules.rule import Rows, changed
from planc.ir.collective import DTYPE_BYTES, Collective
from planc.ir.sharding import Sharded

NAME = "wide_outside_linear"


def apply(sharded: Sharded, rows: Rows) -> Rows:
    multiplied = {p for o in sharded.op.values() if o.op.kind == "matmul" for p in o.op.params}
    return tuple(_wide(row) if _narrow(row) and row.tensor not in multiplied else row for row in rows)


def _narrow(row: Collective) -> bool:
    return row.carries == "param" and row.dtype != "fp32" and row.phase != "optimizer"


def _wide(row: Collective) -> Collective:
    wide = row.buffer_bytes / DTYPE_BYTES[row.dtype] * DTYPE_BYTES["fp32"]
    return changed(row, NAME, dtype="fp32", buffer_bytes=wide)
