"""With a capacity, ranks exchange all slots of the experts, used or not.

For each sending rank an expert has as many slots as its capacity, rounded up.
"""

from __future__ import annotations

from planc.backends.xla.analysis.expert_mesh import XlaExpertAxes
from planc.backends.xla.rules.rule import Rows, changed, of_tokens
from planc.ir.collective import DTYPE_BYTES, Collective
from planc.ir.sharding import Sharded

NAME = "expert_capacity_slots"


def apply(sharded: Sharded, rows: Rows) -> Rows:
    experts = XlaExpertAxes(sharded)
    if not experts.ops or not experts.capacity:
        return rows
    elements = experts.places(experts.tokens_of_a_rank) * sharded.model.sizes["experts"] * sharded.model.sizes["embed"]
    return tuple(_with_capacity_slots(row, elements) if of_tokens(sharded, row) else row for row in rows)


def _with_capacity_slots(row: Collective, elements: int) -> Collective:
    """Return `row`, an exchange of tokens with experts, with the bytes of all slots of a rank (`elements` numbers).
    Ranks that share an expert all-gather slots after the exchange, and reduce-scatter before the exchange back."""
    gathered = row.group_size if row.op in ("all_gather", "reduce_scatter") else 1
    return changed(row, NAME, buffer_bytes=elements * gathered * DTYPE_BYTES[row.dtype])
