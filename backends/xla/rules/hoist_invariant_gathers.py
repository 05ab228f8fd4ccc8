"""Outside the repeated block, forward and backward share one gather of a parameter.

Forward and backward also share one in a block that is repeated once, since XLA unrolls a loop of one iteration (the
dense first layer of a DeepSeek with fsdp 2 > ep 2: two executions over two microbatches), but there the gathers stay
in the loop over microbatches.
Both stand in one loop body, where equal gathers are one. On virtual CPU devices the gather also does
not depend on the microbatch and moves out of that loop: once a step (embedding, final norm and head
of fsdp 2 > tp 2: one execution each over four microbatches). The TPU compiler hoists only
the gathers of weights that are multiplied (the head of v5p and v6e programs; their embedding stays in the loop).
"""

from __future__ import annotations

from planc.backends.xla.rules.rule import Rows, changed, platform
from planc.ir.collective import Collective
from planc.ir.sharding import Sharded

NAME = "hoist_invariant_gathers"


def apply(sharded: Sharded, rows: Rows) -> Rows:
    outside = [r for r in rows if _gathers(sharded, r)]
    again = {id(r) for r in outside if r.phase == "backward"}
    everything = platform(sharded) == "host"
    multiplied = {p for o in sharded.op.values() if o.op.kind == "matmul" for p in o.op.params}
    ends = [r for r in outside if r.section in ("first", "last")]
    hoisted = {id(r) for r in ends if everything or r.tensor in multiplied}
    kept = [r for r in rows if id(r) not in again]
    return tuple(changed(r, NAME, per="step", count=1) if id(r) in hoisted and r.count > 1 else r for r in kept)


def _gathers(sharded: Sharded, row: Collective) -> bool:
    once = {kind for kind in sharded.model.blocks if sharded.model.layers_of(kind) == 1}
    return row.carries == "param" and row.op == "all_gather" and row.section in {"first", "last", *once}
