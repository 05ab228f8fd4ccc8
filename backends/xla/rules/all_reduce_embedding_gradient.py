"""The TPU compiler sums the gradient of a table that is looked up over all ranks at once, where replicas hold copies.

A matmul's gradient is scattered over the ranks that store it and then summed over the replicas. What adds up rows
that were looked up is one sum over all that share the batch: the compiler makes a scatter of a sum only where both
are over the same ranks, so it stays whole. Read from replica 2 > fsdp 16 > tp 4 on v5p.
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
    """The `rows`, of which gradients of `tensors` that are scattered and then summed over copies are one sum over
    all, marked with the `rule`'s name."""
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
