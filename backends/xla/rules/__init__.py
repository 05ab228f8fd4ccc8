"""Realisation rules: from the semantic collectives of a plan to those that XLA issues.

One rule a file, applied in this order. A rule sees layouts and the platform, never the name of a model or plan. Figures
in the rules were read from compiled programs, per device and step.
"""

from __future__ import annotations

from planc.backends.xla.rules import (
    all_reduce_activations,
    all_reduce_embedding_gradient,
    all_reduce_expert_gradients,
    all_reduce_head_once,
    all_reduce_per_axis,
    all_reduce_per_microbatch,
    all_reduce_then_slice,
    all_reduce_thin_shards,
    all_reduce_uneven_slices,
    all_reduce_whole_torus,
    all_reduce_with_copies,
    each_use_of_a_tied_table,
    embedding_and_head_on_all_ranks,
    exchange_gate_weights,
    expert_buffers,
    expert_capacity_slots,
    fill_and_drain,
    fill_value_gradients,
    fp32_embedding_sum,
    fp32_outside_linear,
    fp32_ring_gradients,
    gather_by_all_reduce,
    gather_per_reader,
    gather_updated_params,
    gather_whole_updates,
    hand_on_each_tick,
    hoist_invariant_gathers,
    keep_whole_what_no_rank_divides,
    look_up_by_columns,
    multiply_narrow,
    one_gather_of_a_tied_table,
    pad_scattered_rows,
    pass_keys_once,
    promote_bf16,
    reduce_per_reader,
    regather_saved_activations,
    shard_whole_heads,
    sum_within_slices_first,
)
from planc.backends.xla.rules.rule import Rows
from planc.ir.sharding import Sharded

ORDER = (
    shard_whole_heads,
    look_up_by_columns,
    keep_whole_what_no_rank_divides,
    expert_buffers,
    expert_capacity_slots,
    exchange_gate_weights,
    all_reduce_per_microbatch,
    each_use_of_a_tied_table,
    all_reduce_per_axis,
    all_reduce_expert_gradients,
    gather_updated_params,
    gather_whole_updates,
    fp32_outside_linear,
    fp32_ring_gradients,
    pass_keys_once,
    fill_value_gradients,
    fp32_embedding_sum,
    hoist_invariant_gathers,
    regather_saved_activations,
    gather_per_reader,
    reduce_per_reader,
    multiply_narrow,
    all_reduce_activations,
    all_reduce_whole_torus,
    gather_by_all_reduce,
    all_reduce_embedding_gradient,
    all_reduce_with_copies,
    all_reduce_thin_shards,
    all_reduce_uneven_slices,
    all_reduce_head_once,
    pad_scattered_rows,
    all_reduce_then_slice,
    fill_and_drain,
    hand_on_each_tick,
    embedding_and_head_on_all_ranks,
    promote_bf16,
    one_gather_of_a_tied_table,
    sum_within_slices_first,
)
"""A rule may rely on the ones before it."""


def realise(sharded: Sharded, rows: Rows) -> Rows:
    """Return the collectives that XLA issues for `sharded`, per device and step, instead of `rows`, the collectives
    that the plan's layouts imply."""
    for rule in ORDER:
        rows = rule.apply(sharded, rows)
    return tuple(r for r in rows if r.count and r.group_size > 1)
