"""Realisation rules: from the semantic collectives of a plan to those that XLA issues.

One rule a file, applied in this order. A rule sees layouts and the platform; never a model's or a
plan's name. Figures in the rules were read from compiled programs, per device and step.
"""

from __future__ import annotations

from planc.backends.xla.rules import (
    all_reduce_then_slice,
    ends_on_every_rank,
    experts_whole,
    fill_and_drain,
    gather_by_all_reduce,
    gather_for_each_reader,
    gather_kept_again,
    gather_updated_params,
    hand_on_each_iteration,
    hoist_invariant_gathers,
    look_up_whole_table,
    look_up_wide,
    pad_scattered_rows,
    promote_narrow,
    reduce_activations_whole,
    reduce_each_reader,
    reduce_whole_machine,
    sum_each_dim,
    sum_each_microbatch,
    sum_table_over_all,
    sum_thin_parts,
    wide_outside_linear,
)
from planc.backends.xla.rules import exchange_gate_weights as weights_travel
from planc.backends.xla.rules import expert_capacity_slots as places_for_rows
from planc.backends.xla.rules.rule import Rows
from planc.ir.sharding import Sharded

ORDER = (
    places_for_rows,
    weights_travel,
    sum_each_microbatch,
    sum_each_dim,
    experts_whole,
    gather_updated_params,
    wide_outside_linear,
    look_up_whole_table,
    look_up_wide,
    hoist_invariant_gathers,
    gather_kept_again,
    gather_for_each_reader,
    reduce_each_reader,
    reduce_activations_whole,
    reduce_whole_machine,
    gather_by_all_reduce,
    sum_table_over_all,
    sum_thin_parts,
    pad_scattered_rows,
    all_reduce_then_slice,
    fill_and_drain,
    hand_on_each_iteration,
    ends_on_every_rank,
    promote_narrow,
)
"""A rule may rely on those before it."""


def realise(sharded: Sharded, rows: Rows) -> Rows:
    """The collectives that XLA issues for a plan, per device and optimizer step."""
    for rule in ORDER:
        rows = rule.apply(sharded, rows)
    return tuple(r for r in rows if r.count and r.group_size > 1)
