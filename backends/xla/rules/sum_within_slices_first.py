"""A sum over devices of several slices runs within each slice first and then across slices, on shards if it is sharded.

The data-centre network carries the result of one slice: a gradient that is sharded over ranks of a slice is
reduce-scattered there, and its shards are all-reduced across; a replicated one is all-reduced twice. Read from replica
2 > fsdp 4 > tp 2 on two slices of v5p 2x2x2: the embedding's gradient, 16 MiB in each of two microbatches, is 24 MiB on
the wire within a slice and 8 MiB across.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from planc.backends.xla.analysis.slices import across, ranks_over_slices
from planc.backends.xla.rules.all_reduce_whole_torus import sums_over_all
from planc.backends.xla.rules.rule import Rows, changed, platform
from planc.ir.collective import Collective
from planc.ir.sharding import Sharded

NAME = "sum_within_slices_first"


def apply(sharded: Sharded, rows: Rows) -> Rows:
    if platform(sharded) != "tpu" or not ranks_over_slices(sharded.plan):
        return rows
    return tuple(again for row in rows for again in _summed(sharded, row))


def _summed(sharded: Sharded, row: Collective) -> Iterator[Collective]:
    """Yield the collectives that replace `row`. An all-reduce over several devices of several slices becomes a sum
    within each slice and one across slices; any other collective is unchanged."""
    plan = sharded.plan
    outer = across(plan, row.axes)
    inner = tuple(a for a in row.axes if a not in outer)
    if row.op != "all_reduce" or not outer or not inner:
        yield row
        return
    ranks, parts = plan.mesh.size(*inner), 1
    first = changed(row, NAME, axes=inner, group_size=ranks)
    if _rests_over(sharded, row, inner):
        whole = ranks == plan.cluster.devices_per_node and sums_over_all(sharded)
        first, parts = replace(first, op="all_reduce" if whole else "reduce_scatter"), ranks
    yield first
    size = row.buffer_bytes / parts
    yield replace(first, op="all_reduce", axes=outer, group_size=plan.mesh.size(*outer), buffer_bytes=size)


def _rests_over(sharded: Sharded, row: Collective, axes: tuple[str, ...]) -> bool:
    """True if `row` sums a gradient that is stored sharded over at least `axes`."""
    param = sharded.param.get(row.tensor)
    return row.carries == "grad" and param is not None and set(axes) <= set(param.stored["grads"])
