"""Virtual CPU devices send bf16 as fp32: twice the bytes."""

from __future__ import annotations

from planc.backends.xla.rules.rule import Rows, in_dtype, platform
from planc.ir.sharding import Sharded

NAME = "promote_bf16"


def apply(sharded: Sharded, rows: Rows) -> Rows:
    if platform(sharded) == "tpu":
        return rows
    return tuple(in_dtype(row, NAME, "fp32") if row.dtype == "bf16" else row for row in rows)
