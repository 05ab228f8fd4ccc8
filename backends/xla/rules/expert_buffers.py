"""Dropless experts have a buffer for the most rows that a rank can receive; only at run time is it known how many come.

XLA's shapes are static, so ranks that share an expert all-gather whole buffers. TPUs exchange only the rows in use
(counted as for balanced routing); CPUs have no ragged all-to-all and send full blocks.
"""

from __future__ import annotations

from planc.backends.xla.analysis.expert_mesh import XlaExpertAxes
from planc.backends.xla.rules.rule import Rows, changed, of_tokens
from planc.ir.collective import DTYPE_BYTES, Collective
from planc.ir.sharding import Sharded

NAME = "expert_buffers"


def apply(sharded: Sharded, rows: Rows) -> Rows:
    experts = XlaExpertAxes(sharded)
    if not experts.ops or experts.capacity:
        return rows
    return tuple(_of_buffer(experts, row) if of_tokens(sharded, row) else row for row in rows)


def _of_buffer(experts: XlaExpertAxes, row: Collective) -> Collective:
    tokens = experts.tokens_of_a_rank
    gathered = row.op in ("all_gather", "reduce_scatter")
    if gathered or (row.op == "all_to_all" and not experts.ragged):
        elements = experts.most_rows(tokens) * experts.plan.model.sizes["embed"]
        elements *= row.group_size if gathered else 1
    else:
        elements = tokens * experts.plan.model.top_k * experts.plan.model.sizes["embed"]
    return changed(row, NAME, buffer_bytes=elements * DTYPE_BYTES[row.dtype])
