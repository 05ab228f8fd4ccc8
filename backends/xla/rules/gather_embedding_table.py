"""With one sequence a rank under sequence parallelism, the TPU compiler looks tokens up in the whole table.

The plan looks them up in each rank's rows and scatters the sum along the sequence. The compiler makes no scatter
of [1, S, E] (see `all_reduce_activations`): it gathers the table over the ranks that divide it too, narrow,
and sums the gradient of the whole table over all of them at once. Read from Llama 8B and 70B on v5p: the one
all-reduce is of 2 and 4 GiB in every microbatch. Two sequences a rank avoid it.
"""

from __future__ import annotations

from collections.abc import Iterator

from planc.backends.xla.rules.rule import Rows, changed, platform
from planc.ir.collective import DTYPE_BYTES, Collective
from planc.ir.sharding import OpSharding, Sharded

NAME = "gather_embedding_table"


def apply(sharded: Sharded, rows: Rows) -> Rows:
    lookup = looked_up_whole(sharded)
    if lookup is None:
        return rows
    return tuple(made for row in rows for made in _realised(sharded, lookup, row))


def looked_up_whole(sharded: Sharded) -> OpSharding | None:
    """The lookup of `sharded` whose table is made whole; None where each rank looks up in its own rows."""
    if platform(sharded) != "tpu" or sharded.plan.batch.microbatch_sequences > 1:
        return None
    return next((o for o in sharded.ops["first"] if o.op.kind == "embedding" and o.partial and _scatters(o)), None)


def _scatters(o: OpSharding) -> bool:
    return o.settle is not None and any(step.kind == "reduce_scatter" for step in o.settle.steps)


def _realised(sharded: Sharded, lookup: OpSharding, row: Collective) -> Iterator[Collective]:
    if row.carries == "activation" and row.section == "first" and row.tensor == lookup.op.output:
        return
    if row.tensor not in lookup.op.params:
        yield row
    elif row.carries == "param":
        yield from _gathered(sharded, lookup, row)
    elif row.op == "reduce_scatter":
        yield _table_all_reduce(sharded, lookup, row)
    else:
        yield row


def _gathered(sharded: Sharded, lookup: OpSharding, row: Collective) -> Iterator[Collective]:
    """Over the axes it is stored over, then over those that divide its rows: in the compute dtype."""
    size = DTYPE_BYTES[sharded.plan.precision.compute]
    bytes = row.buffer_bytes / DTYPE_BYTES[row.dtype] * size
    narrow = changed(row, NAME, dtype=sharded.plan.precision.compute, buffer_bytes=bytes)
    yield narrow
    ranks = sharded.plan.mesh.size(*lookup.partial)
    yield changed(narrow, NAME, axes=lookup.partial, group_size=ranks, buffer_bytes=bytes * ranks)


def _table_all_reduce(sharded: Sharded, lookup: OpSharding, row: Collective) -> Collective:
    mesh = sharded.plan.mesh
    axes = mesh.in_order((*row.axes, *lookup.partial))
    whole = row.buffer_bytes * mesh.size(*lookup.partial)
    return changed(row, NAME, op="all_reduce", axes=axes, group_size=mesh.size(*axes), buffer_bytes=whole)
