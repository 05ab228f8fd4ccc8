"""On TPU 7x a gradient that is sharded over some ranks of its sum and replicated over others is all-reduced over all.

Other chips reduce-scatter it and all-reduce the shards over the replicas. `linear` sums in these two steps itself where
it can (`analysis/copies.py`); this rule covers the rest: norms, and all gradients in a pipeline. Read from llama3_8b,
replica 2 > fsdp 16 > tp 4 on 7x 4x4x4, before `linear` did so.
"""

from __future__ import annotations

from planc.backends.xla.analysis.copies import copies_summed_last, sums_whole
from planc.backends.xla.rules.all_reduce_embedding_gradient import summed_with_copies
from planc.backends.xla.rules.rule import Rows, of_experts
from planc.ir.sharding import Sharded

NAME = "all_reduce_with_copies"


def apply(sharded: Sharded, rows: Rows) -> Rows:
    if not sums_whole(sharded):
        return rows
    multiplied = {p for o in sharded.op.values() if o.op.kind == "matmul" for p in o.op.params}
    said = multiplied if copies_summed_last(sharded) else set()
    left = {r.tensor for r in rows if r.carries == "grad" and r.tensor not in said and not of_experts(sharded, r)}
    return summed_with_copies(sharded, rows, left, NAME)
