"""Router weights are sent with the tokens, in fp32, because the experts multiply their hidden activations by them.

The gradients of the weights are sent back with the gradients of the tokens.
"""

from __future__ import annotations

from collections.abc import Iterator

from planc.backends.cuda.analysis.roles import AxisRoles
from planc.backends.cuda.rules.rule import Rows, changed, routed_tensors
from planc.ir.collective import DTYPE_BYTES, Collective

NAME = "exchange_gate_weights"


def apply(roles: AxisRoles, rows: Rows) -> Rows:
    there = {name for name, way in routed_tensors(roles).items() if way == "there"}
    return tuple(new for row in rows for new in _with_weights(roles, row, row.tensor in there))


def _with_weights(roles: AxisRoles, row: Collective, there: bool) -> Iterator[Collective]:
    yield row
    if there:
        width = roles.plan.model.sizes[roles.sharded.model.tensor[row.tensor].dims[-1]] * DTYPE_BYTES[row.dtype]
        weights = row.buffer_bytes / width * DTYPE_BYTES["fp32"]
        yield changed(row, NAME, tensor=f"{row.tensor} weights", dtype="fp32", buffer_bytes=weights)
