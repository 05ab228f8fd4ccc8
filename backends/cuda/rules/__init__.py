"""Realisation rules: turn the framework-independent collectives, which a plan's layouts require in any program, into
those that torch issues.

One rule a file, applied in this order. A rule depends on layouts and axis roles, never on a model's or plan's name.
"""

from __future__ import annotations

from planc.backends.cuda.analysis.roles import AxisRoles
from planc.backends.cuda.rules import (
    all_reduce_float8_scales,
    all_reduce_last,
    all_reduce_scalars_per_dim,
    dtensor_gradients,
    exchange_gate_weights,
    exchange_token_counts,
    expert_rows_per_rank,
    gather_both_ends_together,
    gather_for_saved,
    gather_per_sibling,
    gather_whole_updates,
    group_state,
    keep_last_group_gathered,
    pad_dim0,
    pipeline_keeps_state,
    replay_in_order,
    ring_gradients,
)
from planc.backends.cuda.rules.rule import Rows
from planc.ir.collective import Collective
from planc.ir.sharding import Sharded

ORDER = (
    replay_in_order,
    gather_for_saved,
    gather_per_sibling,
    expert_rows_per_rank,
    exchange_gate_weights,
    exchange_token_counts,
    ring_gradients,
    dtensor_gradients,
    all_reduce_last,
    gather_both_ends_together,
    pipeline_keeps_state,
    keep_last_group_gathered,
    pad_dim0,
    gather_whole_updates,
    group_state,
    all_reduce_scalars_per_dim,
    all_reduce_float8_scales,
)
"""The rules in their order: a rule may rely on those before it."""


def realise(sharded: Sharded, rows: Rows) -> tuple[Collective, ...]:
    """Returns the collectives that torch issues for `sharded` per device and step. `rows` are those of any program."""
    roles = AxisRoles(sharded)
    for rule in ORDER:
        rows = rule.apply(roles, rows)
    return tuple(r for r in rows if r.count and r.group_size > 1)
