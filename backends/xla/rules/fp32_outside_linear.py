"""Only `linear` casts a parameter before its all-gather: embeddings and norms are gathered in fp32.

Their gradients are then summed in fp32 too, as they have no custom backward. The TPU compiler casts an embedding before
the gather, as its rows are cast right after the lookup, unless it is vocab-sharded (then the outputs are summed, in
fp32); norms stay in fp32 there too.
"""

from __future__ import annotations

from planc.backends.xla.rules.rule import Rows, in_dtype, platform
from planc.ir.collective import Collective
from planc.ir.sharding import OpSharding, Sharded

NAME = "fp32_outside_linear"


def apply(sharded: Sharded, rows: Rows) -> Rows:
    uses = [(section, o) for section, ops in sharded.ops.items() for o in ops]
    narrow = {(s, p) for s, o in uses if o.op.kind == "matmul" or _cast_first(sharded, o) for p in o.op.params}
    return tuple(
        in_dtype(row, NAME, "fp32") if _is_param_in_16_bits(row) and (row.section, row.tensor) not in narrow else row
        for row in rows
    )


def _cast_first(sharded: Sharded, o: OpSharding) -> bool:
    return platform(sharded) == "tpu" and o.op.kind == "embedding" and not o.partial


def _is_param_in_16_bits(row: Collective) -> bool:
    return row.carries == "param" and row.dtype != "fp32" and row.phase != "optimizer"
