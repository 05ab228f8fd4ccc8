"""With replicas, the TPU compiler all-reduces the gradient of an embedding over all data-parallel ranks.

A matmul's gradient is reduce-scattered over the ranks that shard it and then all-reduced over the replicas. An
embedding's gradient is a scatter-add, summed by one all-reduce over all these ranks: the compiler makes a
reduce-scatter only where the sum and the sharding are over the same ranks. Read from replica 2 > fsdp 16 > tp 4 on v5p.
"""

from __future__ import annotations

from collections.abc import Collection

from planc.backends.xla.rules.rule import Rows, changed, platform
from planc.ir.collective import Collective
from planc.ir.sharding import Sharded

NAME = "all_reduce_embedding_gradient"


def apply(sharded: Sharded, rows: Rows) -> Rows:
    if platform(sharded) != "tpu":
        return rows
    tables = {p for o in sharded.op.values() if o.op.kind == "embedding" for p in o.op.params}
    return summed_with_copies(sharded, rows, tables, NAME)


def summed_with_copies(sharded: Sharded, rows: Rows, tensors: Collection[str], rule: str) -> Rows:
    """Return `rows` with one all-reduce for each gradient of `tensors` that is reduce-scattered and then all-reduced
    over replicas, marked with the name of `rule`."""
    mine = [r for r in rows if r.carries == "grad" and r.tensor in tensors]
    scattered = {(r.tensor, r.stage) for r in mine if r.op == "reduce_scatter"}
    copies = {(r.tensor, r.stage): r for r in mine if r.op == "all_reduce" and (r.tensor, r.stage) in scattered}
    dropped = {id(r) for r in copies.values()}
    return tuple(
        _reduced_over_copies(sharded, r, copies.get((r.tensor, r.stage)), rule) for r in rows if id(r) not in dropped
    )


def _reduced_over_copies(sharded: Sharded, row: Collective, copies: Collective | None, rule: str) -> Collective:
    if copies is None or row.carries != "grad" or row.op != "reduce_scatter":
        return row
    axes = sharded.plan.mesh.in_order((*row.axes, *copies.axes))
    return changed(row, rule, op="all_reduce", axes=axes, group_size=sharded.plan.mesh.size(*axes))
