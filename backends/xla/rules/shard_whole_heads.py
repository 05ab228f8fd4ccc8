"""An axis that shards `head_dim` in a projection shards its heads, in blocks: no exchange is between the two.

Read on virtual CPU devices from a DeepSeek with heads over tp 2, and head_dim over tp in projection: the values and the
output's input are not exchanged, in the forward nor in the backward (49,152 bytes).
"""

from __future__ import annotations

from itertools import chain

from planc.backends.xla.analysis.layouts import steps_of
from planc.backends.xla.rules.rule import Rows
from planc.ir.sharding import Sharded

NAME = "shard_whole_heads"


def apply(sharded: Sharded, rows: Rows) -> Rows:
    """Return `rows` of `sharded` without all-to-alls between a tensor's heads and the elements of a head."""
    ops = chain.from_iterable(sharded.ops.values())
    moves = [m for o in ops for m in (*o.redistributions, o.settle) if m is not None and m.steps]
    still = {m.tensor for m in moves if not steps_of(sharded, m)}
    return tuple(r for r in rows if r.op != "all_to_all" or r.tensor not in still)
