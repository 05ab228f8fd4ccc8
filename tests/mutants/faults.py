"""The planted faults. Each is one edit that a tired colleague could make, and the test that sees it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """Replace `text`, which occurs once in `file`, by `planted`; then `test` must fail."""

    name: str
    file: str
    text: str
    planted: str
    test: str


FAULTS: tuple[Fault, ...] = (
    Fault(
        name="a partial sum is left unreduced",
        file="planc/sharding/propagate.py",
        text="partial = outside(layout, dims) if op.kind in CONTRACTING else ()",
        planted="partial: tuple[str, ...] = ()",
        test="tests/sharding/test_semantics.py::test_tensor_and_sequence_parallel_llama",
    ),
    Fault(
        name="a norm's gradient is not reduced over the sequence's axis",
        file="planc/sharding/propagate.py",
        text="grad_partial=outside(user.layout, param.dims),",
        planted="grad_partial=plan.data_axes,",
        test="tests/sharding/test_semantics.py::test_tensor_and_sequence_parallel_llama",
    ),
    Fault(
        name="a column-parallel input's gradient is not summed",
        file="planc/sharding/activations.py",
        text="""    if o.op.kind == "matmul":
        return outside(o.layout, dims)""",
        planted="",
        test="tests/sharding/test_semantics.py::test_tensor_parallel_without_sequence_parallel_reduces",
    ),
    Fault(
        name="ZeRO-1 reduces every microbatch",
        file="planc/sharding/state.py",
        text='per = "microbatch" if p.stored["grads"] else "step"',
        planted='per = "microbatch"',
        test="tests/sharding/test_semantics.py::test_zero1_reduces_and_gathers_once_a_step",
    ),
    Fault(
        name="the stages of a pipeline send one boundary too few",
        file="planc/sharding/collectives.py",
        text="count=count * microbatches_each(plan),",
        planted="count=(count - 1) * microbatches_each(plan),",
        test="tests/sharding/test_semantics.py::test_pipeline_sends_once_per_boundary_and_microbatch",
    ),
    Fault(
        name="state is counted whole on every device",
        file="planc/cost/memory.py",
        text="n * stored_elements(plan, p, p.stored[noun]) *",
        planted="n * stored_elements(plan, p, ()) *",
        test="tests/cost/test_identities.py::test_state_memory_by_hand",
    ),
    Fault(
        name="1F1B's stages warm up in the wrong order",
        file="planc/schedules/one_f_one_b.py",
        text="warm = min(ranks - rank - 1, microbatches)",
        planted="warm = min(rank, microbatches)",
        test="tests/cost/test_schedule.py::test_in_flight_microbatches",
    ),
    Fault(
        name="the mesh is laid innermost first",
        file="planc/ir/mesh.py",
        text="for name, size in sizes.items():",
        planted="for name, size in reversed(sizes.items()):",
        test="tests/cost/test_topology.py::test_axes_fill_a_node_from_the_inside",
    ),
    Fault(
        name="a node's devices do not share its way out",
        file="planc/cost/topology.py",
        text="each = way_out / min(cluster.devices_per_node, devices)",
        planted="each = way_out",
        test="tests/cost/test_topology.py::test_a_node_shares_its_way_out",
    ),
    Fault(
        name="an all-reduce costs one pass",
        file="planc/cost/network.py",
        text='"all_reduce": 2,',
        planted='"all_reduce": 1,',
        test="tests/cost/test_topology.py::test_an_all_reduce_is_a_scatter_and_a_gather",
    ),
    Fault(
        name="groups that straddle a border are not seen",
        file="planc/cost/topology.py",
        text="offset = 0 if extent >= devices else width - gcd(extent, width)",
        planted="offset = 0",
        test="tests/cost/test_topology.py::test_units_that_a_group_touches",
    ),
    Fault(
        name="cut rings have the links to themselves",
        file="planc/cost/topology.py",
        text="inner = self.length // self.left",
        planted="inner = 1",
        test="tests/cost/test_topology.py::test_a_cut_ring_has_no_wrap_and_its_rest_shares_the_links",
    ),
    Fault(
        name="an all-to-all on a ring costs what a gather costs",
        file="planc/cost/network.py",
        text="return max(r.crossing for r in phase.rings) * inside / link",
        planted="return inside / phase.bytes_per_s",
        test="tests/cost/test_topology.py::test_an_all_to_all_on_a_torus_is_bound_by_the_middle",
    ),
    Fault(
        name="key-value heads stay whole",
        file="planc/ir/dims.py",
        text='"heads": ("heads", "kv_heads")',
        planted='"heads": ("heads",)',
        test="tests/strategies/test_build.py::test_heads_carry_the_key_value_heads",
    ),
    Fault(
        name="an import may leave its folder",
        file="planc/strategies/draft.py",
        text="if path.is_relative_to(root) and not Path(name).is_absolute():",
        planted="if not Path(name).is_absolute():",
        test="tests/strategies/test_build.py::test_imports_stay_in_their_folder",
    ),
    Fault(
        name="a stale preset is trained",
        file="planc/trainer/preset.py",
        text="if actual != expected:",
        planted="if not actual:",
        test="tests/trainer/test_preset.py::test_a_source_that_changed_is_refused",
    ),
    Fault(
        name="an edited compiled plan is trained",
        file="planc/trainer/preset.py",
        text="if expected != hashlib.sha256(part.compiled.encode()).hexdigest():",
        planted="if expected is None:",
        test="tests/trainer/test_preset.py::test_a_compiled_plan_that_was_edited_is_refused",
    ),
    Fault(
        name="receipts of other seeds are compared",
        file="planc/trainer/crosscheck.py",
        text="fields = [f for f in MUST_AGREE if",
        planted='fields = [f for f in MUST_AGREE if f != "seed" and',
        test="tests/trainer/test_crosscheck.py::test_runs_that_had_no_reason_to_agree_are_refused",
    ),
    Fault(
        name="the third receipt is not looked at",
        file="planc/trainer/crosscheck.py",
        text="zip(*(r.losses for r in receipts), strict=True)",
        planted="zip(*(r.losses for r in receipts[:2]), strict=True)",
        test="tests/trainer/test_crosscheck.py::test_the_third_run_counts_too",
    ),
    Fault(
        name="every seed gives the same weights",
        file="planc/trainer/weights.py",
        text='f"{seed} {name}".encode()',
        planted='f"{name}".encode()',
        test="tests/trainer/test_weights.py::test_layers_and_seeds_differ",
    ),
    Fault(
        name="held-out text is trained on",
        file="planc/trainer/data.py",
        text='self._draw(self._parts[1], "held out", index)',
        planted='self._draw(self._parts[0], "held out", index)',
        test="tests/trainer/test_data.py::test_held_out_text_is_not_trained_on",
    ),
    Fault(
        name="cuda: the loss is summed over microbatches",
        file="backends/cuda/emit_step.py",
        text="labels[index]) / len(inputs)",
        planted="labels[index])",
        test="tests/cuda/test_parity.py::test_trains_as_one_process[fsdp]",
    ),
    Fault(
        name="cuda: replicas do not reduce their gradients",
        file="backends/cuda/emit_step.py",
        text="model.set_requires_all_reduce(last)",
        planted="model.set_requires_all_reduce(False)",
        test="tests/cuda/test_parity.py::test_trains_as_one_process[hsdp]",
    ),
    Fault(
        name="cuda: two data ranks train on the same rows",
        file="backends/cuda/emit_whole.py",
        text="index = index * MESH[axis] + mesh.get_local_rank(axis)",
        planted="index = index + mesh.get_local_rank(axis)",
        test="tests/cuda/test_parity.py::test_trains_as_one_process[hsdp]",
    ),
    Fault(
        name="cuda: clipping ignores the pipeline's axis",
        file="backends/cuda/emit_whole.py",
        text='_sum_of_stages(roles, "Each stage knows the norm of its own layers.", "norm"),',
        planted='"",',
        test="tests/cuda/test_parity.py::test_trains_as_one_process[1f1b]",
    ),
    Fault(
        name="cuda: the stages are swapped",
        file="backends/cuda/emit_pipeline.py",
        text="begin, end = STAGES[index]",
        planted="begin, end = STAGES[len(STAGES) - 1 - index]",
        test="tests/cuda/test_parity.py::test_trains_as_one_process[1f1b]",
    ),
    Fault(
        name="cuda: the embedding's output is not cloned",
        file="backends/cuda/emit_apply.py",
        text="lambda module, inputs, output: output.clone()",
        planted="lambda module, inputs, output: output",
        test="tests/cuda/test_emit.py::test_a_sentence_writes_what_it_needs",
    ),
    Fault(
        name="cuda: rows are not padded to the shard axes",
        file="backends/cuda/rules/pad_dim0.py",
        text="// rows * ceil(rows / parts) * parts",
        planted="// rows * rows",
        test="tests/cuda/test_rules.py::test_padding_at_2048_ranks",
    ),
    Fault(
        name="xla: gradients are summed over microbatches",
        file="backends/xla/emit_step.py",
        text="lambda x: x / batches[0].shape[0], total",
        planted="lambda x: x, total",
        test="tests/xla/test_parity.py::test_trains_as_one_device[fsdp]",
    ),
    Fault(
        name="xla: the clipped norm is squared",
        file="backends/xla/emit_step.py",
        text="norm = jnp.sqrt(sum(jnp.sum(jnp.square(g)) for g in jax.tree.leaves(grads)))",
        planted="norm = sum(jnp.sum(jnp.square(g)) for g in jax.tree.leaves(grads))",
        test="tests/xla/test_parity.py::test_trains_as_one_device[fsdp]",
    ),
    Fault(
        name="xla: a step leaves its state whole on every device",
        file="backends/xla/emit_step.py",
        text='out_shardings=(state, {"loss": whole, "grad_norm": whole}),',
        planted='out_shardings=(jax.tree.map(lambda _: whole, state), {"loss": whole, "grad_norm": whole}),',
        test="tests/xla/test_parity.py::test_trains_as_one_device[fsdp]",
    ),
    Fault(
        name="xla: optimizer state is stored whole",
        file="backends/xla/layouts.py",
        text="further = plan.mesh.in_order(p.stored[use])",
        planted="further = ()",
        test="tests/xla/test_emit.py::test_zero_stages_differ_in_what_is_divided",
    ),
    Fault(
        name="xla: parameters are cut on the smallest dimension",
        file="backends/xla/layouts.py",
        text="return max(able, key=lambda i: (not plan.mesh.in_order(p.compute[i]), local[i], -i))",
        planted="return min(able, key=lambda i: (not plan.mesh.in_order(p.compute[i]), local[i], -i))",
        test="tests/xla/test_layouts.py::test_the_largest_dimension_that_divides_is_cut",
    ),
    Fault(
        name="editor: positions count code points",
        file="planc/editor/positions.py",
        text="self.codec.client_num_units(self.text[self._client_starts[line] : offset])",
        planted="offset - self._client_starts[line]",
        test="tests/editor/test_features.py::test_positions_count_code_units",
    ),
    Fault(
        name="editor: an import is read from disk although it is open",
        file="planc/strategies/imports.py",
        text="unsaved = self.unsaved.get(path.resolve()) if self.unsaved else None",
        planted="unsaved = None",
        test="tests/editor/test_features.py::test_a_plan_may_import_what_only_the_editor_holds",
    ),
    Fault(
        name="editor: a sentence is charged with every collective",
        file="planc/editor/hover.py",
        text="cause.span.line == span.line",
        planted="cause.span.line > 0",
        test="tests/editor/test_features.py::test_hover_counts_the_collectives_of_its_sentence_alone",
    ),
    Fault(
        name="floors: an upward import is let through",
        file="tests/house/test_floors.py",
        text="if ROOMS[target][0] > floor or other_backend:",
        planted="if other_backend:",
        test="tests/house/test_floors.py::test_a_planted_import_is_found",
    ),
    Fault(
        name="scores of all experts are divided over the experts' axis",
        file="planc/ir/plan.py",
        text='if region == ROUTED or (dim == "experts" and region not in ("", EXPERTS)):',
        planted="if region == ROUTED:",
        test="tests/sharding/test_experts.py::test_experts_over_a_mesh_axis_need_no_view",
    ),
    Fault(
        name="a view's axes do not divide the tokens",
        file="planc/ir/plan.py",
        text="tokens = {a for a in tokens if a not in view.of} | set(view.names)",
        planted="tokens = {a for a in tokens if a not in view.of}",
        test="tests/sharding/test_experts.py::test_tokens_go_to_experts_and_back",
    ),
    Fault(
        name="gradients of gathered keys are not summed over the rows",
        file="planc/sharding/activations.py",
        text="return tuple(a for d in whole for a in o.layout.get(d, ()))",
        planted="return ()",
        test="tests/sharding/test_context.py::test_keys_and_values_are_gathered",
    ),
    Fault(
        name="a ring's gradients do not come home",
        file="planc/sharding/activations.py",
        text='yield replace(call, tensor=f"{name} gradient", times=members)',
        planted='yield replace(call, tensor=f"{name} gradient", times=members - 1)',
        test="tests/sharding/test_context.py::test_a_ring_passes_them_on",
    ),
)
