"""On virtual CPU devices an activation's gradient is reduced separately for each reader, before the parts are added.

The TPU compiler adds first and reduces once (two reductions a layer in the backward of Llama); the CPU compiler reduces
the parts of q, k and v, and of gate and up, one by one (five a layer). A reader with a replicated weight needs no sum:
of the inputs of DeepSeek's router and shared expert, only those of the expert's gate and up are summed (two a layer).
"""

from __future__ import annotations

from planc.backends.xla.rules.rule import Rows, changed, of_tokens, platform
from planc.ir.collective import Collective
from planc.ir.sharding import OpSharding, Sharded
from planc.sharding.redistribute import outside

NAME = "reduce_per_reader"


def apply(sharded: Sharded, rows: Rows) -> Rows:
    if platform(sharded) == "tpu":
        return rows
    return tuple(
        _reduce_per_reader(sharded, row) if _reduces(row) and not of_tokens(sharded, row) else row for row in rows
    )


def _reduces(row: Collective) -> bool:
    return row.carries == "activation" and row.phase == "backward" and row.op in ("reduce_scatter", "all_reduce")


def _reduce_per_reader(sharded: Sharded, row: Collective) -> Collective:
    readers = [o for o in sharded.ops.get(row.section, ()) if sums(sharded, o, row)]
    return changed(row, NAME, count=row.count * len(readers)) if len(readers) > 1 else row


def sums(sharded: Sharded, o: OpSharding, row: Collective) -> bool:
    """True if the matmul `o` reads the activation of `row`, and its gradient is a partial sum over an axis of `row`."""
    if o.op.kind != "matmul" or row.tensor not in o.op.inputs:
        return False
    return not set(row.axes).isdisjoint(outside(o.layout, sharded.model.tensor[row.tensor].dims))
