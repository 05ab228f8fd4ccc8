"""Outside the repeated block, forward and backward share one gather of a parameter.

Forward and backward are in the body of the loop over microbatches, where equal gathers are merged. Virtual CPU devices
also hoist the gather out of this loop: once a step (embedding, final norm and head of fsdp 2 > tp 2: one execution each
over four microbatches). The TPU compiler hoists only gathers of matmul weights (the head of v5p and v6e programs; their
embedding stays in the loop) and of copies of offloaded parameters (v5p and v6e programs of 8 layers). It hoists no
gather of the head out of a pipeline's loop (pp 4 > fsdp 2 > tp 2 on v5p). If ranks have several stages, the head is in
a branch of that loop, and CPUs do not hoist its gathers either.

With `gather params per microbatch` gathers are in the body of the loop over microbatches. CPU devices hoist them, once
a step (cp 2 > data 2 and dp 2 > cp 2 > tp 2, of 2 and 4 microbatches). On TPUs they are assumed to stay; no such
program was read.

XLA unrolls a loop of one iteration, as over a block that occurs once. Virtual CPU devices hoist the gathers of such a
block too, but separately for forward and backward: two executions over two microbatches and over four (the dense first
layer of a DeepSeek with fsdp 2 > ep 2 and fsdp 2 > tp 2). Experts' explicit gathers are merged into one (a Mixtral of
one layer, data 2 > expert 2). On TPUs forward and backward are assumed to share one gather in the loop over
microbatches; no such program was read.
"""

from __future__ import annotations

from collections.abc import Collection

from planc.backends.xla.analysis.pipeline import chunks, pipelined
from planc.backends.xla.rules.rule import Rows, changed, of_experts, platform
from planc.ir.collective import Collective
from planc.ir.sharding import Sharded

NAME = "hoist_invariant_gathers"


def apply(sharded: Sharded, rows: Rows) -> Rows:
    everything = platform(sharded) == "host"
    copied = "params" in sharded.plan.offloaded
    once = {kind for kind in sharded.model.blocks if sharded.model.layers_of(kind) == 1}
    multiplied = {p for o in sharded.op.values() if o.op.kind == "matmul" for p in o.op.params}
    ends = [r for r in rows if _gathers(r, {"first", "last"})]
    unrolled = [r for r in rows if _gathers(r, once)]
    at_once = [*ends, *(r for r in unrolled if not everything or of_experts(sharded, r))]
    again = {id(r) for r in at_once if r.phase == "backward"}
    stays = pipelined(sharded.plan) and (not everything or chunks(sharded.plan) > 1)
    free = [r for r in ends if not (stays and r.section == "last")]
    hoisted = {id(r) for r in free if everything or copied or r.tensor in multiplied}
    hoisted |= {id(r) for r in unrolled if everything}
    if everything and sharded.plan.gather_per == "microbatch":
        hoisted |= {id(r) for r in rows if _gathers(r, sharded.model.blocks)}
    kept = [r for r in rows if id(r) not in again]
    return tuple(_once(sharded, r) if id(r) in hoisted and r.count > 1 else r for r in kept)


def _once(sharded: Sharded, row: Collective) -> Collective:
    """Return `row`, a parameter's gather, with one call a step; for a parameter of blocks, one call for each layer."""
    each = sharded.model.layers_of(row.section) if row.section in sharded.model.blocks else 1
    return changed(row, NAME, per="step", count=each)


def _gathers(row: Collective, sections: Collection[str]) -> bool:
    return row.carries == "param" and row.op == "all_gather" and row.section in sections
