"""On virtual CPU devices a reduce-scatter is an all-reduce and a local slice: twice the bytes on the wire.

What is summed over further axes too is summed over them on the whole; where these divide the batch as well, in one
all-reduce over all of them. A weight of `linear` with a backward of its own is laid out at once: the further sum
comes after its slice (fsdp 2 > tp 2 with the sequence over tp, replica 2 > ep 2). The TPU compiler makes the
reduce-scatter of a Llama step (16 x 4), but not of every program: the audit says which. What `experts` scatters
stays so: it is said there.
"""

from __future__ import annotations

from dataclasses import replace

from planc.backends.xla.analysis.layouts import own_gradient
from planc.backends.xla.rules.rule import Rows, changed, of_experts, of_tokens, platform
from planc.ir.collective import Collective
from planc.ir.sharding import Sharded

NAME = "all_reduce_then_slice"
Key = tuple[str, str, int]


def apply(sharded: Sharded, rows: Rows) -> Rows:
    if platform(sharded) == "tpu":
        return rows
    said = {id(r) for r in rows if of_tokens(sharded, r) or of_experts(sharded, r)}
    scattered = {_key(r): r for r in rows if r.op == "reduce_scatter" and id(r) not in said}
    said |= {id(r) for r in rows if r.op == "all_reduce" and r.tensor in _laid_out_at_once(sharded)}
    data = set(sharded.plan.data_axes)
    joined = {
        _key(r): r
        for r in rows
        if id(r) not in said and _follows_reduce_scatter(r, scattered) and data.issuperset(r.axes)
    }
    kept = [r for r in rows if joined.get(_key(r)) is not r]
    return tuple(row if id(row) in said else _as_all_reduce(sharded, row, scattered, joined) for row in kept)


def _laid_out_at_once(sharded: Sharded) -> set[str]:
    """The weights whose gradient `linear` lays out itself."""
    plan = sharded.plan
    if not own_gradient(plan):
        return set()
    return {p for o in sharded.op.values() if o.op.kind == "matmul" for p in o.op.params}


def _follows_reduce_scatter(row: Collective, scattered: dict[Key, Collective]) -> bool:
    return row.op == "all_reduce" and row.carries == "grad" and _key(row) in scattered


def _key(row: Collective) -> Key:
    return row.carries, row.tensor, row.stage


def _as_all_reduce(
    sharded: Sharded, row: Collective, scattered: dict[Key, Collective], joined: dict[Key, Collective]
) -> Collective:
    mesh, other = sharded.plan.mesh, joined.get(_key(row))
    if row.op == "reduce_scatter":
        axes = mesh.in_order((*row.axes, *(other.axes if other else ())))
        return changed(replace(row, axes=axes, group_size=mesh.size(*axes)), NAME, op="all_reduce")
    if _follows_reduce_scatter(row, scattered):
        return changed(row, NAME, buffer_bytes=row.buffer_bytes * scattered[_key(row)].group_size)
    return row
