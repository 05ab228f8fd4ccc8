"""Router weights travel in fp32 with the tokens; the experts apply them to their (smaller) activation.

In the ragged all-to-all of TPUs a weight fills the lanes of a vector (read from Mixtral, fsdp 16 > ep 8 on v5p:
f32[32768, 1, 128]).
"""

from __future__ import annotations

from planc.backends.xla.analysis.attention import LANES
from planc.backends.xla.analysis.expert_mesh import XlaExpertAxes
from planc.backends.xla.rules.rule import Rows, changed, of_tokens, platform
from planc.ir.collective import DTYPE_BYTES, Collective
from planc.ir.sharding import Sharded

NAME = "exchange_gate_weights"


def apply(sharded: Sharded, rows: Rows) -> Rows:
    experts = XlaExpertAxes(sharded)
    if not experts.ops:
        return rows
    sent = experts.ops[0].op.inputs[0]
    lanes = LANES if experts.ragged and platform(sharded) == "tpu" else 1
    embed = sharded.model.sizes["embed"] / lanes
    return (*rows, *(_weights(r, embed) for r in rows if of_tokens(sharded, r) and r.tensor == sent))


def _weights(row: Collective, embed: float) -> Collective:
    wide = row.buffer_bytes / embed / DTYPE_BYTES[row.dtype] * DTYPE_BYTES["fp32"]
    return changed(row, NAME, dtype="fp32", buffer_bytes=wide)
