"""Faults in the audit of compiled programs."""

from __future__ import annotations

from .fault import Fault

FAULTS: tuple[Fault, ...] = (
    Fault(
        name="xla audit: a loop's collectives count once",
        file="backends/xla/audit/inventory.py",
        text="self.walk(self.module[name], times * inner.count, inner)",
        planted="self.walk(self.module[name], times, inner)",
        test="tests/xla/test_hlo.py::test_the_corpus_counts_what_the_programs_say",
    ),
    Fault(
        name="xla audit: a fused reduce-scatter counts as an all-reduce",
        file="backends/xla/audit/inventory.py",
        text='op = "reduce_scatter"',
        planted='op = "all_reduce"',
        test="tests/xla/test_hlo.py::test_the_corpus_counts_what_the_programs_say",
    ),
    Fault(
        name="xla audit: a collective that is not known is passed over",
        file="backends/xla/audit/inventory.py",
        text='raise HloError(f"{computation.name}: `{i.opcode}` is a collective that is not known")',
        planted="pass",
        test="tests/xla/test_hlo.py::test_what_is_not_known_is_refused",
    ),
    Fault(
        name="xla audit: groups are read without their transposition",
        file="backends/xla/audit/groups.py",
        text="return (ids.transpose(_numbers(found[3])) if found[3] else ids).reshape(_numbers(found[1]))",
        planted="return ids.reshape(_numbers(found[1]))",
        test="tests/xla/test_hlo.py::test_forms_of_groups",
    ),
    Fault(
        name="xla audit: shifts after padding are forgotten",
        file="backends/xla/rules/pad_scattered_rows.py",
        text="shifted = shifted_rows(",
        planted="shifted = 0 * shifted_rows(",
        test="tests/xla/test_tpu_rules.py::test_the_rules_give_what_was_compiled[fsdp_v6e]",
    ),
    Fault(
        name="xla audit: thin gradients are scattered",
        file="backends/xla/rules/all_reduce_thin_shards.py",
        text="return slices > 1 and",
        planted="return slices > 9999 and",
        test="tests/xla/test_tpu_rules.py::test_gradients_that_the_compiler_summed_whole[llama3_8b_v6e_256-fsdp-whole1]",
    ),
    Fault(
        name="xla audit: a loop's body holds its state a second time",
        file="backends/xla/audit/live_buffers.py",
        text="held = 0 if argument and not self.outermost else",
        planted="held = 0 if argument and self.outermost else",
        test="tests/xla/test_live_buffers.py::test_a_loop_holds_its_state_once_and_what_its_body_makes",
    ),
    Fault(
        name="xla audit: sums along columns need no equal slices",
        file="backends/xla/rules/all_reduce_uneven_slices.py",
        text="return 0 <= further * SLICE_MIB[chip] <=",
        planted="return 0 * SLICE_MIB[chip] <=",
        test="tests/xla/test_tpu_rules.py::test_a_vocabulary_without_equal_slices_is_summed_whole",
    ),
    Fault(
        name="xla: gradients on 7x are summed over copies as parts of other copies",
        file="backends/xla/emit/model.py",
        text="order = [batch.index(a) for a in (*copies, *others)]",
        planted="order = [batch.index(a) for a in batch]",
        test="tests/xla/test_alone.py::test_gradients_summed_over_copies_last_are_those_of_one_device[inside]",
    ),
    Fault(
        name="xla audit: a looked-up table's gradient is scattered before its copies are summed",
        file="backends/xla/rules/all_reduce_embedding_gradient.py",
        text="if copies is None or",
        planted="if copies is not None or",
        test="tests/xla/test_tpu_rules.py::test_gradients_that_the_compiler_summed_whole"
        "[llama3_8b_v5p_128_hsdp-replica+fsdp-whole4]",
    ),
    Fault(
        name="xla audit: a gather counts in each fusion that carries it on",
        file="backends/xla/audit/inventory.py",
        text="if not self._goes_on(computation, i):",
        planted="if True:",
        test="tests/xla/test_hlo.py::test_a_collective_that_several_fusions_carry_on_counts_once",
    ),
    Fault(
        name="xla audit: an exchange of ragged rows sends the places that stay empty",
        file="backends/xla/audit/inventory.py",
        text="shapes = (min(shapes[:2], key=lambda s: s.bytes),)",
        planted="shapes = (max(shapes[:2], key=lambda s: s.bytes),)",
        test="tests/xla/test_hlo.py::test_ragged_rows_are_those_of_the_buffer_that_is_full",
    ),
    Fault(
        name="xla audit: what hosts carry across slices is not counted",
        file="backends/xla/audit/inventory.py",
        text='elif i.opcode == "send" and _BETWEEN.search(i.attributes):',
        planted='elif i.opcode == "send" and i.attributes == "":',
        test="tests/xla/test_hlo.py::test_what_hosts_carry_across_slices_is_a_collective_of_their_axes[ALL_REDUCE-all_reduce-4096]",
    ),
    Fault(
        name="xla: sums over several slices cross them whole",
        file="backends/xla/rules/sum_within_slices_first.py",
        text='first, parts = replace(first, op="all_reduce" if whole else "reduce_scatter"), ranks',
        planted="pass",
        test="tests/xla/test_tpu_rules.py::test_sums_are_made_within_slices_first",
    ),
    Fault(
        name="xla: the innermost axes lie across slices",
        file="backends/xla/emit/step.py",
        text="create_hybrid_device_mesh(within, across, devices",
        planted="create_hybrid_device_mesh(across, within, devices",
        test="tests/xla/test_layouts.py::test_a_mesh_of_slices_is_laid_on_each_torus",
    ),
    Fault(
        name="xla audit: models of two kinds of blocks have one stack of parameters",
        file="backends/xla/analysis/stacked_params.py",
        text="found = {p.name: numbers(model, p) for p in model.params if stacked(model, p)}",
        planted="found = {p.name: tuple(range(model.layers)) for p in model.params if stacked(model, p)}",
        test="tests/xla/test_audit.py::test_a_step_of_two_kinds_of_blocks_is_traced",
    ),
    Fault(
        name="xla audit: a reader whose weight is whole sums a gradient too",
        file="backends/xla/rules/reduce_per_reader.py",
        text="    return not set(row.axes).isdisjoint(outside(o.layout, sharded.model.tensor[row.tensor].dims))",
        planted="    return bool(outside(o.layout, sharded.model.tensor[row.tensor].dims) or True)",
        test="tests/xla/test_moe.py::test_the_rules_give_what_was_compiled[deepseek_tp]",
    ),
    Fault(
        name="xla audit: a ring of two passes keys for the backward of an unrolled layer",
        file="backends/xla/rules/pass_keys_once.py",
        text='    if (row.op, row.phase, row.group_size) != ("send_recv", "backward", 2):',
        planted='    if (row.op, row.phase, row.group_size) != ("send_recv", "backward", 3):',
        test="tests/xla/test_moe.py::test_the_rules_give_what_was_compiled[deepseek_tp_ring]",
    ),
    Fault(
        name="xla audit: gradients of filled values are as narrow as values",
        file="backends/xla/rules/fill_value_gradients.py",
        text="buffer_bytes=row.buffer_bytes * keys / values)",
        planted="buffer_bytes=row.buffer_bytes * keys / keys)",
        test="tests/xla/test_moe.py::test_the_rules_give_what_was_compiled[deepseek_tp_cp]",
    ),
)
