"""Faults in the JAX program."""

from __future__ import annotations

from .fault import Fault

FAULTS: tuple[Fault, ...] = (
    Fault(
        name="xla: gradients are summed over microbatches",
        file="backends/xla/emit/step.py",
        text="lambda x: x / batches[0].shape[0], total",
        planted="lambda x: x, total",
        test="tests/xla/test_parity.py::test_trains_as_one_device[fsdp]",
    ),
    Fault(
        name="xla: the clipped norm is squared",
        file="backends/xla/emit/step.py",
        text="norm = jnp.sqrt(sum(jnp.sum(jnp.square(g)) for g in jax.tree.leaves(grads)))",
        planted="norm = sum(jnp.sum(jnp.square(g)) for g in jax.tree.leaves(grads))",
        test="tests/xla/test_parity.py::test_trains_as_one_device[fsdp]",
    ),
    Fault(
        name="xla: a step leaves its state whole on every device",
        file="backends/xla/emit/step.py",
        text='out_shardings=(state, {"loss": whole, "grad_norm": whole}),',
        planted='out_shardings=(jax.tree.map(lambda _: whole, state), {"loss": whole, "grad_norm": whole}),',
        test="tests/xla/test_parity.py::test_trains_as_one_device[fsdp]",
    ),
    Fault(
        name="xla: optimizer state is stored whole",
        file="backends/xla/analysis/layouts.py",
        text="further = parts(plan, plan.mesh.in_order(p.stored[use]))",
        planted="further = ()",
        test="tests/xla/test_emit.py::test_zero_stages_differ_in_what_is_divided",
    ),
    Fault(
        name="xla: tokens come to experts that are full",
        file="backends/xla/emit/experts.py",
        text="    return jnp.where(place < places, chosen.flatten() * places + place, total * places)",
        planted="    return chosen.flatten() * places + place",
        test="tests/xla/test_moe.py::test_trains_as_one_device[qwen3_moe_capacity]",
    ),
    Fault(
        name="xla: an expert works on the rows of other experts",
        file="backends/xla/emit/experts.py",
        text="    return jnp.swapaxes(rows, 0, 1).reshape(rows.shape[1], -1, *rows.shape[3:])",
        planted="    return rows.reshape(rows.shape[1], -1, *rows.shape[3:])",
        test="tests/xla/test_moe.py::test_trains_as_one_device[ep_view_crossed]",
    ),
    Fault(
        name="xla: every place is said to hold a row of an even choice",
        file="backends/xla/rules/expert_capacity_slots.py",
        text="    elements = _capacity_slots(experts) * sharded",
        planted="    elements = _capacity_slots(experts) // 4 * sharded",
        test="tests/xla/test_moe.py::test_issues_the_collectives_that_the_rules_predict[ep_view_crossed]",
    ),
    Fault(
        name="xla: parameters are cut on the smallest dimension",
        file="backends/xla/analysis/layouts.py",
        text="return max(able, key=lambda i: (not plan.mesh.in_order(p.compute[i]), local[i], -i))",
        planted="return min(able, key=lambda i: (not plan.mesh.in_order(p.compute[i]), local[i], -i))",
        test="tests/xla/test_layouts.py::test_the_largest_dimension_that_divides_is_cut",
    ),
    Fault(
        name="xla: splash attention where keys are on other ranks",
        file="backends/xla/analysis/attention.py",
        text="    if keyed_axes(sharded):\n",
        planted="    if keyed_axes(sharded) and pipelined(plan):\n",
        test="tests/xla/test_splash.py::test_without_being_asked_it_is_left_out_where_it_cannot_run",
    ),
    Fault(
        name="xla: gradients come home round a ring in the compute dtype",
        file="backends/xla/rules/fp32_ring_gradients.py",
        text='changed(row, NAME, dtype="fp32", buffer_bytes=wide, count=row.count - last)',
        planted="changed(row, NAME, count=row.count - last)",
        test="tests/xla/test_tpu_rules.py::test_gradients_travel_a_ring_as_they_are_summed",
    ),
    Fault(
        name="xla: a block's peak without what its backward reads",
        file="backends/xla/analysis/peak_memory.py",
        text="self._read_by_backward(kind) + self._of_kernel(kind)",
        planted="self._of_kernel(kind)",
        test="tests/xla/test_audit.py::test_golden_of_the_tpu_predictions",
    ),
    Fault(
        name="xla: rows of the ring meet the tails of earlier ranks",
        file="backends/xla/emit/context_parallel.py",
        text="near = jnp.where(step <= jax.lax.axis_index(<entry>), 0, size)",
        planted="near = jnp.where(step > jax.lax.axis_index(<entry>), 0, size)",
        test="tests/xla/test_parity.py::test_trains_as_one_device[ring]",
    ),
    Fault(
        name="xla: what left the pipeline stays where it was put",
        file="backends/xla/emit/pipeline.py",
        text="return jnp.roll(waiting, 1 - ranks, axis=0)",
        planted="return waiting",
        test="tests/xla/test_parity.py::test_trains_as_one_device[gpipe]",
    ),
    Fault(
        name="xla: filling and draining the pipeline moves nothing",
        file="backends/xla/rules/fill_and_drain.py",
        text="count=row.count * iterations(sharded.plan) // useful",
        planted="count=row.count",
        test="tests/xla/test_rules.py::test_the_rules_give_what_was_compiled[gpipe_fsdp]",
    ),
    Fault(
        name="xla: a pipeline of chunks keeps a chunk's weights in each iteration",
        file="backends/xla/emit/pipeline.py",
        text="@functools.partial(jax.checkpoint, policy=policy, prevent_cse=False)",
        planted="@functools.partial(jax.checkpoint, policy=jax.checkpoint_policies.everything_saveable)",
        test="tests/xla/test_held.py::test_more_microbatches_hold_no_more_weights",
    ),
    Fault(
        name="positions that turn often are scaled, too",
        file="backends/xla/models/llama.py",
        text="(1 - share) * divided + share * frequencies",
        planted="divided",
        test="tests/xla/test_twins.py::test_positions_are_scaled_alike[llama3]",
    ),
    Fault(
        name="a tied table is gathered for the head once more",
        file="backends/xla/rules/__init__.py",
        text="    promote_bf16,\n    one_gather_of_a_tied_table,\n)",
        planted="    promote_bf16,\n)",
        test="tests/xla/test_rules.py::test_the_rules_give_what_was_compiled[tied_fsdp_tp_sp]",
    ),
)
