"""Virtual CPU devices send bf16 as fp32: twice the bytes."""

from __future__ import annotations

from planc.backends.xla.rules.rule import Rows, changed, platform
from planc.ir.collective import DTYPE_BYTES, Collective
from planc.ir.sharding import Sharded

NAME = "promote_bf16"


def apply(sharded: Sharded, rows: Rows) -> Rows:
    if platform(sharded) == "tpu":
        return rows
    return tuple(_promoted(row) if row.dtype == "bf16" else row for row in rows)


def _promoted(row: Collective) -> Collective:
    factor = DTYPE_BYTES["fp32"] / DTYPE_BYTES["bf16"]
    return changed(row, NAME, dtype="fp32", buffer_bytes=row.buffer_bytes * factor)
