"""A sharded saved activation that a matmul needs gathered is gathered again for the weight gradient.

With sequence parallelism the norm's output is such an activation. Attention's keys and values are not: they are saved
as gathered over the sequence's ranks (cp 4: one gather of each a layer), except in a pipeline, which stores sharded
tensors between its ticks. Outside the blocks forward and backward share one gather, except for the head of a pipeline
on virtual CPU devices. Read from fsdp 2 > tp 2 with sequence over tp: two more a layer; from pp 2 > dp 2 > cp 2: 30
gathers of keys and values in the forward and 30 in the backward.

A recompute that reads a saved activation shares the backward's gather (recompute of q, k and v, on CPU devices and
v5p). That of saved keys gathers nothing, but the TPU compiler gathers them again (recompute of attention alone on v5p:
64 gathers and not 32).
"""

from __future__ import annotations

from planc.backends.xla.analysis.pipeline import pipelined
from planc.backends.xla.analysis.saved_by_blocks import layers_that_save, saved_by_replayed_blocks
from planc.backends.xla.rules.rule import Rows, changed, of_tokens, platform
from planc.ir.collective import Collective, Phase
from planc.ir.sharding import Sharded

NAME = "regather_saved_activations"


def apply(sharded: Sharded, rows: Rows) -> Rows:
    keys = {t for o in sharded.op.values() for t in o.op.whole_of}
    apart = set() if pipelined(sharded.plan) else keys
    again = [r for r in rows if _is_gather(r, "forward") and r.tensor not in apart and not of_tokens(sharded, r)]
    held, repeated = saved_by_replayed_blocks(sharded), keys if platform(sharded) == "tpu" else ()
    return (
        *(r for r in rows if r.tensor in repeated or not (_is_gather(r, "recompute") and r.tensor in held[r.section])),
        *(changed(r, NAME, phase="backward", count=count) for r in again if (count := _times_saved(sharded, r))),
    )


def _times_saved(sharded: Sharded, row: Collective) -> int:
    """Return how often a backward repeats the forward gather `row`: once for each call whose input is saved sharded.
    Outside the blocks, forward and backward share one gather, except for a pipeline's head on CPU devices."""
    if row.section not in sharded.model.blocks:
        again = pipelined(sharded.plan) and platform(sharded) == "host" and row.section == "last"
        return row.count if again else 0
    return round(row.count * layers_that_save(sharded, row.section, row.tensor))


def _is_gather(row: Collective, phase: Phase) -> bool:
    return (row.carries, row.op, row.phase) == ("activation", "all_gather", phase)
