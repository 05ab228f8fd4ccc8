"""A ring of two ranks sends keys once for recompute and backward; in a block that occurs once, also for the forward.

XLA unrolls loops of one iteration, here over the layers and around the ring. Forward and backward are then in one loop
body, that over the microbatches, and equal sends of saved keys are merged. Read on virtual CPU devices from the dense
first layer of a DeepSeek with cp 2 > tp 2: 36,864 and 24,576 bytes of keys and values, and not twice that. A recompute
and its backward are in one body in any block: 96 sends and not 120 in six layers of a Llama with cp 2. On TPUs only the
sends of splash attention are merged.
"""

from __future__ import annotations

from planc.backends.xla.analysis.attention import runs_splash
from planc.backends.xla.analysis.saved_by_blocks import layers_that_save
from planc.backends.xla.rules.rule import Rows, platform
from planc.ir.collective import Collective
from planc.ir.sharding import Sharded

NAME = "pass_keys_once"


def apply(sharded: Sharded, rows: Rows) -> Rows:
    """Return `rows` of `sharded` without the sends of keys and values that XLA merges with equal sends of another
    pass."""
    passed = {name for o in sharded.attentions if o.ring for name in o.op.whole_of}
    if platform(sharded) == "tpu":
        of_two = runs_splash(sharded)
        return tuple(r for r in rows if not (of_two and r.tensor in passed and _replayed(r)))
    return tuple(r for r in rows if r.tensor not in passed or not (_replayed(r) or _made_by_forward(sharded, r)))


def _replayed(row: Collective) -> bool:
    """True if `row` is a send in a recompute, in a ring of two ranks."""
    return (row.op, row.phase, row.group_size) == ("send_recv", "recompute", 2)


def _made_by_forward(sharded: Sharded, row: Collective) -> bool:
    """True if `row` sends saved keys or values in a ring of two, in the backward of a block that occurs once."""
    if (row.op, row.phase, row.group_size) != ("send_recv", "backward", 2):
        return False
    return sharded.model.layers_of(row.section) == 1 and bool(layers_that_save(sharded, row.section, row.tensor))
