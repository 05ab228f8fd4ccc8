"""With gathered keys and values, the gradient of narrow values is summed at the width of the keys.

The program pads values with zeros after the gather, as the attention function requires equal widths; the gradient is
summed over the ranks before it is sliced. Read from latent attention with keys of 12 and values of 8 (cp 2 > tp 2):
49,152 bytes of values, summed as 73,728.
"""

from __future__ import annotations

from planc.backends.xla.analysis.attention import narrow_values
from planc.backends.xla.rules.rule import Rows, changed
from planc.ir.collective import Collective
from planc.ir.sharding import OpSharding, Sharded
from planc.sharding.local import dim_length

NAME = "fill_value_gradients"


def apply(sharded: Sharded, rows: Rows) -> Rows:
    narrow = {o.op.inputs[2]: o for o in sharded.attentions if not o.ring and narrow_values(sharded, o)}
    return tuple(_as_wide_as_keys(sharded, row, narrow[row.tensor]) if _sums(row, narrow) else row for row in rows)


def _sums(row: Collective, narrow: dict[str, OpSharding]) -> bool:
    return row.tensor in narrow and row.phase == "backward" and row.op in ("reduce_scatter", "all_reduce")


def _as_wide_as_keys(sharded: Sharded, row: Collective, o: OpSharding) -> Collective:
    _, keys, values = (dim_length(sharded.plan, sharded.model.tensor[name].dims[-1]) for name in o.op.inputs)
    return changed(row, NAME, buffer_bytes=row.buffer_bytes * keys / values)
