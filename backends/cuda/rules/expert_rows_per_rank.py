"""A rank sends top_k rows for each of its tokens, or with an expert capacity, all slots of every expert.

The framework-independent prediction is an even share of all rows. torch's slots are rounded up on every rank.
"""

from __future__ import annotations

from math import ceil

from planc.backends.cuda.analysis.roles import AxisRoles
from planc.backends.cuda.rules.rule import Rows, changed, routed_tensors
from planc.ir.collective import Collective
from planc.ir.model import ROUTED, SLOTS
from planc.sharding.local import local_length

NAME = "expert_rows_per_rank"


def apply(roles: AxisRoles, rows: Rows) -> Rows:
    routed = routed_tensors(roles)
    return tuple(_rows_of_rank(roles, row) if row.tensor in routed else row for row in rows)


def _rows_of_rank(roles: AxisRoles, row: Collective) -> Collective:
    plan = roles.plan
    share = plan.model.sizes["experts"] * local_length(plan, SLOTS, plan.axes_of(SLOTS, ROUTED))
    return changed(row, NAME, buffer_bytes=row.buffer_bytes / share * rows_sent(roles))


def rows_sent(roles: AxisRoles) -> int:
    """Returns the number of token rows that a rank sends per microbatch, for the plan of `roles` and an even router."""
    plan = roles.plan
    divided = plan.mesh.size(*plan.axes_of("sequence", "residual"))
    rows = plan.batch.microbatch_sequences * plan.batch.sequence_tokens // divided * plan.model.top_k
    if plan.route.method != "capacity":
        return rows
    experts = plan.model.sizes["experts"]
    return ceil(rows * plan.route.factor / experts) * experts
