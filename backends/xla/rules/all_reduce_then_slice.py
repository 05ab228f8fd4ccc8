"""Virtual CPU devices run a reduce-scatter as an all-reduce and a local slice: twice the bytes on the wire.

A gradient that is also summed over other axes is not sliced in between: one all-reduce runs over all batch axes, and
another over the other axes (`all_reduce_per_axis`). For a weight of a `linear` with a custom backward the second sum
comes after the slice (fsdp 2 > tp 2 with the sequence over tp, replica 2 > ep 2); norms and the embedding are summed
whole over each (cp 2 inside fsdp 2 > replica 2, stored over cp). The TPU compiler emits a reduce-scatter for a Llama
step (16 x 4), but not for every program: the audit shows which. The explicit psum_scatter in `experts` is not affected.
"""

from __future__ import annotations

from dataclasses import replace

from planc.backends.xla.analysis.layouts import laid_out_at_once
from planc.backends.xla.rules.all_reduce_per_axis import split_by_axis
from planc.backends.xla.rules.rule import Rows, changed, of_experts, of_tokens, platform
from planc.ir.collective import Collective
from planc.ir.sharding import Sharded

NAME = "all_reduce_then_slice"
Key = tuple[str, str, str, int]


def apply(sharded: Sharded, rows: Rows) -> Rows:
    if platform(sharded) == "tpu":
        return rows
    at_once = laid_out_at_once(sharded)
    said = {id(r) for r in rows if of_tokens(sharded, r) or of_experts(sharded, r)}
    said |= {id(r) for r in rows if r.op == "all_reduce" and (r.section, r.tensor) in at_once}
    scattered = {_key(r) for r in rows if r.op == "reduce_scatter" and id(r) not in said}
    further: dict[Key, list[Collective]] = {}
    for r in rows:
        if id(r) not in said and _key(r) in scattered and (r.op, r.carries) == ("all_reduce", "grad"):
            further.setdefault(_key(r), []).append(r)
    joined = {id(r) for found in further.values() for r in found}
    return tuple(
        made
        for row in rows
        if id(row) not in joined
        for made in (
            (row,)
            if id(row) in said or row.op != "reduce_scatter"
            else _whole(sharded, row, further.get(_key(row), []), apart=(row.section, row.tensor) not in at_once)
        )
    )


def _key(row: Collective) -> Key:
    return row.carries, row.tensor, row.section, row.stage  # each use of a tied table has sums of its own


def _whole(sharded: Sharded, row: Collective, further: list[Collective], *, apart: bool) -> Rows:
    """Return the all-reduces that replace the reduce-scatter `row` and the all-reduces `further` of the same gradient.
    With `apart`, the sum over the batch's axes and the sum over other axes are two calls."""
    mesh = sharded.plan.mesh
    axes = mesh.in_order((*row.axes, *(a for r in further for a in r.axes)))
    summed = changed(replace(row, axes=axes, group_size=mesh.size(*axes)), NAME, op="all_reduce")
    return split_by_axis(sharded, summed) if apart else (summed,)
