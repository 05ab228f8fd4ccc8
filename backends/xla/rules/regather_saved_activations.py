"""An input that a matmul needs whole and the forward saved divided is gathered again for the weight's gradient.

Attention's keys and values are not: once gathered over the sequence's ranks they are kept so (cp 4: one
gather of each a layer). Under sequence parallelism that is the norm's output: kept in the layout it
rests in. Outside the block forward and backward share one gather. Read from fsdp 2 > tp 2 with sequence over tp:
two more a layer.
"""

from __future__ import annotations

from planc.backends.xla.rules.rule import Rows, changed, of_tokens
from planc.ir.collective import Collective
from planc.ir.sharding import Sharded
from planc.sharding.recompute import replay

NAME = "regather_saved_activations"


def apply(sharded: Sharded, rows: Rows) -> Rows:
    kept = {kind: set(replay(sharded.plan, kind).saved) for kind in sharded.model.blocks}
    keys = {t for o in sharded.op.values() for t in o.op.whole_of}
    again = [
        r for r in rows if _is_forward_gather(r) and r.tensor in kept.get(r.section, ()) and not of_tokens(sharded, r)
    ]
    again = [r for r in again if r.tensor not in keys]
    return (*rows, *(changed(r, NAME, phase="backward") for r in again))


def _is_forward_gather(row: Collective) -> bool:
    """A forward gather of an activation."""
    return (row.carries, row.op, row.phase) == ("activation", "all_gather", "forward")
