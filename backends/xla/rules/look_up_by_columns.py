"""Where each rank looks up its own columns of the embedding table, tokens are gathered and rows are exchanged.

The gather of the table and the sum of its gradient are left out: one all-to-all of the rows in the forward, and one of
their gradient in the backward, both in the compute dtype. Read from Llama 8B over all of v6e 16x16
(jax 0.11.2, libtpu 0.0.48.1) and from four virtual CPU devices (jax 0.10.2).
"""

from __future__ import annotations

from collections.abc import Iterator

from planc.backends.xla.analysis.lookup import looked_up_by_columns, lookup_of
from planc.backends.xla.rules.rule import Rows, changed
from planc.ir.collective import DTYPE_BYTES, Collective
from planc.ir.sharding import Sharded
from planc.sharding.local import local_elements, tensor_bytes

NAME = "look_up_by_columns"


def apply(sharded: Sharded, rows: Rows) -> Rows:
    table = looked_up_by_columns(sharded)
    if table is None:
        return rows
    return tuple(
        made for row in rows for made in ((row,) if row.tensor != table.param.name else _exchanges(sharded, row))
    )


def _exchanges(sharded: Sharded, row: Collective) -> Iterator[Collective]:
    """Yield what the program sends in place of `row`, the gather of the table or the sum of its gradient."""
    o, plan = lookup_of(sharded), sharded.plan
    assert o is not None
    if row.carries not in ("param", "grad"):
        yield row
        return
    if row.carries == "param" and row.phase != "forward":
        return
    every, tokens = plan.microbatches, sharded.model.tensor[o.op.inputs[0]]
    each = {"carries": "activation", "per": "microbatch", "count": every}
    if row.carries == "param":
        ids = local_elements(plan, tokens.dims, {}) * DTYPE_BYTES["int32"]
        yield changed(row, NAME, **each, tensor=tokens.name, dtype="int32", buffer_bytes=ids)
    hidden = tensor_bytes(plan, o.op.output, sharded.declared(o.op.output))
    exchanged = {**each, "tensor": o.op.output, "dtype": plan.precision.compute, "buffer_bytes": hidden}
    yield changed(row, NAME, op="all_to_all", phase=row.phase if row.carries == "param" else "backward", **exchanged)
