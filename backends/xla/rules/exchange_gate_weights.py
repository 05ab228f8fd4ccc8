"""With each row travels its weight, in fp32: the experts multiply by it, on their narrow activation."""

from __future__ import annotations

from planc.backends.xla.analysis.expert_mesh import Experts
from planc.backends.xla.rules.rule import Rows, changed, of_tokens
from planc.ir.collective import DTYPE_BYTES, Collective
from planc.ir.sharding import Sharded

NAME = "exchange_gate_weights"


def apply(sharded: Sharded, rows: Rows) -> Rows:
    experts = Experts(sharded)
    if not experts.ops:
        return rows
    sent = experts.ops[0].op.inputs[0]
    embed = sharded.model.sizes["embed"]
    return (*rows, *(_weights(r, embed) for r in rows if of_tokens(sharded, r) and r.tensor == sent))


def _weights(row: Collective, embed: int) -> Collective:
    wide = row.buffer_bytes / embed / DTYPE_BYTES[row.dtype] * DTYPE_BYTES["fp32"]
    return changed(row, NAME, dtype="fp32", buffer_bytes=wide)
