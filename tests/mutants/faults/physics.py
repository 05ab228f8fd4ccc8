"""Faults against physics: of costs, intervals and views."""

from __future__ import annotations

from .fault import Fault

LAWS = "tests/random_plans/test_physics.py"
FAULTS: tuple[Fault, ...] = (
    Fault(
        name="zero1 keeps a shard of a frozen weight beside the whole of it",
        file="planc/costing/memory/state.py",
        text='if "params" not in plan.offloaded and not _copy_is_master(plan, p):',
        planted='if "params" not in plan.offloaded:',
        test=f"{LAWS}::test_no_op_beats_the_machine_and_stored_state_is_less",
    ),
    Fault(
        name="what is sent once a step is in every stage's time",
        file="planc/costing/step/rank_cost.py",
        text='                if per == "step" or g.phase == "optimizer" or g.section == STEP:\n'
        "                    self.after_s += window.stages * n * one_s\n                else:\n"
        "                    self.exposed[window.kind][g.section][backward] += one_s",
        planted='                if g.phase == "optimizer" or g.section == STEP:\n'
        "                    self.after_s += window.stages * n * one_s\n                else:\n"
        "                    for one in self.exposed.values():\n"
        "                        if g.section in one:\n"
        '                            one[g.section][backward] += one_s / (self.times if per == "step" else 1)',
        test=f"{LAWS}::test_more_machine_or_less_to_do_is_never_slower",
    ),
    Fault(
        name="the part for weights of a backward that the host launches is its kernels'",
        file="planc/costing/compute/section.py",
        text="return min(max(sum(kernels), host_s), backward_s - (chip.dispatch_s * launches - host_s))",
        planted="return sum(kernels)",
        test=f"{LAWS}::test_more_machine_or_less_to_do_is_never_slower",
    ),
    Fault(
        name="compute that hides a ring hides the gathers of parameters too",
        file="planc/costing/step/section_cost.py",
        text='hidden = exposed["forward"][1], exposed["recompute"][1], exposed["backward"][1]',
        planted="hidden = 0.0, 0.0, 0.0",
        test=f"{LAWS}::test_more_machine_or_less_to_do_is_never_slower",
    ),
    Fault(
        name="a stream is read at twice the memory's bandwidth",
        file="planc/costing/compute/section.py",
        text="return sizes[0] / memory_bytes_per_s(chip) + chip.launch_s",
        planted="return sizes[0] / 2 / memory_bytes_per_s(chip) + chip.launch_s",
        test=f"{LAWS}::test_no_op_beats_the_machine_and_stored_state_is_less",
    ),
    Fault(
        name="a product of several that run as one has all bytes of their input",
        file="planc/report/views/roofline.py",
        text='bytes=matmul_bytes(sharded, o) if o.op.kind == "matmul" else op_bytes(sharded, o),',
        planted="bytes=op_bytes(sharded, o),",
        test=f"{LAWS}::test_no_op_lies_above_the_roof",
    ),
    Fault(
        name="an interval does not hold its estimate",
        file="planc/calibration/intervals.py",
        text="low=min(value, value * self.low, lowest),",
        planted="low=value * self.low,",
        test="tests/random_plans/test_random_plans.py::test_plans_break_no_promise",
    ),
    Fault(
        name="more is allocated than is held",
        file="planc/calibration/intervals.py",
        text="high=max(memory.reserved_gib.high, allocated.high + outside))",
        planted="high=memory.reserved_gib.high)",
        test="tests/random_plans/test_random_plans.py::test_plans_break_no_promise",
    ),
    Fault(
        name="an interval above the device's memory has no finding",
        file="planc/checks/cost/n0513_upper_end.py",
        text="if high <= capacity * (1 - LEFT) or",
        planted="if high <= 2 * capacity or",
        test="tests/checks/test_examples.py::test_bad_plan_yields_exactly_its_code_and_the_offered_edit_works",
    ),
    Fault(
        name="no word about a chip that no run is of",
        file="planc/calibration/intervals.py",
        text="(subject.chip,) if subject.chip not in self.chips else ()",
        planted="()",
        test="tests/cli/test_goldens.py",
    ),
    Fault(
        name="a stranger has the interval of the runs that it is unlike",
        file="planc/calibration/intervals.py",
        text="if found and any(found.lacks(subject)) else found",
        planted="if not found else found",
        test="tests/calibration/test_intervals.py",
    ),
    Fault(
        name="the machine of one device has no busiest level",
        file="planc/report/views/machine.py",
        text="busiest = max(levels, key=lambda v: v.time_s, default=None)",
        planted="busiest = max(levels, key=lambda v: v.time_s)",
        test=f"{LAWS}::test_every_view_of_an_extreme_plan_exists",
    ),
    Fault(
        name="a bubble below nothing",
        file="planc/costing/step/step_time.py",
        text="bubble_s=max(0.0, makespan_s - work.busy_s[work.slowest]),",
        planted="bubble_s=makespan_s - work.busy_s[work.slowest] - 1e-16,",
        test=f"{LAWS}::test_every_view_of_an_extreme_plan_exists",
    ),
    Fault(
        name="search counts other memory than check",
        file="planc/searching/lower_bounds.py",
        text="return memory(sharded, timeline, None, semantic_collectives(sharded)).per_device_gib.total",
        planted="return memory(sharded, timeline, None, semantic_collectives(sharded)).per_device_gib.tensors",
        test=f"{LAWS}::test_search_counts_the_memory_that_check_counts",
    ),
    Fault(
        name="a program is taken to gather its parameters again for the backward",
        file="planc/costing/step/transfers.py",
        text='if c.carries == "param" and (c.phase != "forward" or c.tensor in gathered):',
        planted="if c.tensor in gathered:",
        test="tests/search/test_drawn_spaces.py::test_no_program_is_far_below_its_bound",
    ),
    Fault(
        name="search costs what a framework makes of a plan for the target that is asked for",
        file="planc/driver/__init__.py",
        text="space_on(on, own=True) if on or plain.plan.realise else plain",
        planted="space_on(on) if on else plain",
        test="tests/search/test_drawn_spaces.py::test_what_was_mended_equals_brute_force",
    ),
    Fault(
        name="gathered parameters stay to the end of the step's only backward",
        file="backends/cuda/analysis/peak_memory.py",
        text="return self._as_the_embedding_is_reduced(moment) if alone else [moment]",
        planted="return [moment]",
        test="tests/cuda/test_peaks_seen.py",
    ),
    Fault(
        name="gradients that accumulate unsharded are summed with no head's",
        file="backends/cuda/analysis/peak_memory.py",
        text="        if not self._ends_together:\n            return 0.0\n",
        planted="        if self._accumulates_whole or not self._ends_together:\n            return 0.0\n",
        test="tests/cuda/test_peaks_seen.py",
    ),
    Fault(
        name="the reduction of the head is no moment",
        file="backends/cuda/analysis/peak_memory.py",
        text="if self.roles.uses_fsdp and not self.roles.pipeline and not self._ends_together:",
        planted="if self.sharded.plan.microbatches < 0:",
        test="tests/cuda/test_peaks_seen.py",
    ),
    Fault(
        name="only the last microbatch of a step reduces",
        file="backends/cuda/analysis/peak_memory.py",
        text="return [(times > 1, True), *([(times > 2, False)] if kept else [])]",
        planted="return [(times > 1, True)]",
        test="tests/cuda/test_peaks_seen.py",
    ),
    Fault(
        name="exposed reductions make the input gradient late",
        file="planc/costing/step/rank_cost.py",
        text="weight += n * (time.weight_s + rest_s + hidden_s)",
        planted="weight += n * time.weight_s",
        test="tests/random_plans/test_physics.py",
    ),
    Fault(
        name="what a replay hides of reductions shortens each weight gradient",
        file="planc/costing/step/rank_cost.py",
        text="weight += n * (time.weight_s + rest_s + hidden_s)",
        planted="weight += n * (time.weight_s + rest_s)",
        test="tests/random_plans/test_physics.py",
    ),
    Fault(
        name="copies of saved tensors do not run beside waits for other stages",
        file="planc/costing/step/step_time.py",
        text="offload_s(on, makespan_s, ranks[on].late_s)",
        planted="offload_s(on, busy[on], ranks[on].late_s)",
        test="tests/random_plans/test_physics.py",
    ),
    Fault(
        name="the update of the busiest rank counts, whichever is the slowest",
        file="planc/costing/step/step_time.py",
        text="optimizer_s=max(map(optimizer_s, range(len(held)))),",
        planted="optimizer_s=optimizer_s(rank),",
        test="tests/random_plans/test_physics.py",
    ),
    Fault(
        name="a rank's only block has another gathered beside it",
        file="backends/cuda/analysis/peak_memory.py",
        text="if not self._has_several_groups:",
        planted="if not self.sections:",
        test="tests/cuda/test_peaks_seen.py",
    ),
    Fault(
        name="copies that each microbatch gathers stay to the end of the step",
        file="backends/cuda/analysis/peak_memory.py",
        text='each = self.plan.microbatches == 1 or self.plan.gather_per == "microbatch"',
        planted="each = self.plan.microbatches == 1",
        test="tests/cuda/test_peaks_seen.py",
    ),
    Fault(
        name="a wait for copies of the host hides no transfer",
        file="planc/costing/step/offload.py",
        text="return state + wait_s - min(late_s, wait_s / microbatches_each(plan))",
        planted="return state + wait_s",
        test=f"{LAWS}::test_more_machine_or_less_to_do_is_never_slower",
    ),
    Fault(
        name="on every plane the head's gradient waits for that of the tokens' table",
        file="backends/xla/analysis/peak_memory.py",
        text="early = self.plan.cluster.chip.name in HEAD_FIRST or self._logits() >= head",
        planted="early = self._logits() >= 0 * head",
        test="tests/xla/test_tpu_rules.py::test_on_planes_the_head_s_gradient_waits_unless_its_logits_are_few",
    ),
    Fault(
        name="an axis of one rank counts among the axes whose orders are tried",
        file="planc/checks/cost/w0601_placement.py",
        text="if len(moving_axes(plan.mesh)) > MOST_AXES",
        planted="if len(plan.mesh.axes) > MOST_AXES",
        test="tests/random_plans/test_axis_of_one.py::test_what_was_mended_holds",
    ),
    Fault(
        name="search asks what is predicted where check asks what is held at the least",
        file="planc/searching/branch_and_bound.py",
        text="return costed.may_fit(self.room_gib)",
        planted="return costed.memory.per_device_gib.total <= self.room_gib",
        test=f"{LAWS}::test_search_and_check_have_one_answer_on_what_fits",
    ),
)
