"""On virtual CPU devices a reduce-scatter is an all-reduce and a local slice: twice the bytes on the wire.

A sum over further axes then happens on the whole too, but for a matmul's weight over the sequence's ranks: there it
comes after the slice (the router of fsdp 2 > tp 2 with experts over both). The TPU compiler makes the reduce-scatter
of a Llama step (16 x 4), but not of every program: the audit says which. What `experts` scatters stays so: it is said
there.
"""

from __future__ import annotations

from planc.backends.xla.rules.rule import Rows, changed, of_experts, of_tokens, platform
from planc.ir.collective import Collective
from planc.ir.sharding import Sharded

NAME = "all_reduce_then_slice"


def apply(sharded: Sharded, rows: Rows) -> Rows:
    if platform(sharded) == "tpu":
        return rows
    said = {id(r) for r in rows if of_tokens(sharded, r) or of_experts(sharded, r)}
    parts = {_key(r): r.group_size for r in rows if r.op == "reduce_scatter" and id(r) not in said}
    multiplied = {p for o in sharded.op.values() if o.op.kind == "matmul" for p in o.op.params}
    sequence = set(sharded.plan.axes_of("sequence", "residual"))
    said |= {id(r) for r in rows if r.tensor in multiplied and r.op == "all_reduce" and sequence.issuperset(r.axes)}
    return tuple(row if id(row) in said else _whole(row, parts) for row in rows)


def _key(row: Collective) -> tuple[str, str, int]:
    return row.carries, row.tensor, row.stage


def _whole(row: Collective, parts: dict[tuple[str, str, int], int]) -> Collective:
    if row.op == "reduce_scatter":
        return changed(row, NAME, op="all_reduce")
    if row.op == "all_reduce" and row.carries == "grad" and _key(row) in parts:
        return changed(row, NAME, buffer_bytes=row.buffer_bytes * parts[_key(row)])
    return row
