"""In a recomputed block, the TPU compiler gathers the first input again for each weight gradient that needs it.

With sequence parallelism q, k and v read one gathered tensor. The recompute gathers it for their outputs; their weight
gradients, at the other end of the backward, each gather it once more: three more in a Llama block on v5p, at 2 and 4
ranks. The feed-forward's input is gathered only in the recompute, close to where its gradients need it. A program that
states the gathered layout at a matmul gathers once (`analysis/gathered_rows.py`); this rule covers the other matmuls.
"""

from __future__ import annotations

from dataclasses import replace

from planc.backends.xla.analysis.gathered_rows import gathered_rows
from planc.backends.xla.rules.rule import Rows, platform
from planc.ir.collective import Collective
from planc.ir.sharding import Sharded

NAME = "gather_per_reader"


def apply(sharded: Sharded, rows: Rows) -> Rows:
    if platform(sharded) != "tpu":
        return rows
    replayed = [r for r in rows if (r.carries, r.op, r.phase) == ("activation", "all_gather", "recompute")]
    first: dict[str, Collective] = {}
    for row in replayed:
        first.setdefault(row.section, row)
    return (*rows, *(_gather_in_backward(sharded, row) for row in first.values()))


def _gather_in_backward(sharded: Sharded, row: Collective) -> Collective:
    stated, _ = gathered_rows(sharded)
    readers = [o for o in sharded.ops[row.section] if row.tensor in o.op.inputs and o.op.kind == "matmul"]
    readers = [o for o in readers if o.op.params[0] not in stated]
    return replace(row, phase="backward", count=row.count * len(readers), realised_by=(*row.realised_by, NAME))
