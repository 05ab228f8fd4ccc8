"""Faults in what compares, sweeps and calibrates."""

from __future__ import annotations

from .fault import Fault

FAULTS: tuple[Fault, ...] = (
    Fault(
        name="a report's machine leaves transfers over several axes out of its links",
        file="planc/report/views/machine.py",
        text='busy.setdefault(_outermost(plan, a.axis.split("+")), [])',
        planted="busy.setdefault(a.axis, [])",
        test="tests/report/test_machine_graph.py::test_its_page_has_the_picture_and_counts_every_transfer",
    ),
    Fault(
        name="FSDP2 holds gathered blocks beside the loss",
        file="planc/frameworks/torch.py",
        text="gathered_in_loss=False",
        planted="gathered_in_loss=True",
        test="tests/calibration/test_accuracy.py::test_a_loss_in_bf16_and_gradients_that_are_added_up_whole",
    ),
    Fault(
        name="a table that tensor parallelism leaves whole is divided",
        file="tests/lab/published/plans.py",
        text='yield from (["override tok_embeddings = replicated"] if whole_table else [])',
        planted="pass",
        test="tests/calibration/test_accuracy.py::test_a_loss_in_bf16_and_gradients_that_are_added_up_whole",
    ),
    Fault(
        name="an order counts as beaten as soon as one of its collectives is slower",
        file="planc/compare/placement.py",
        text="return all(one >= other * (1 - SAME) for one, other in zip(seconds, known, strict=True))",
        planted="return any(one >= other * (1 - SAME) for one, other in zip(seconds, known, strict=True))",
        test="tests/compare/test_placement.py::test_no_order_is_better[h200, sequences between]",
    ),
    Fault(
        name="ranks are laid on devices in the plan's own order of axes",
        file="planc/compare/placement.py",
        text="stride = best.axis(axis.name).stride",
        planted="stride = mesh.axis(axis.name).stride",
        test="tests/compare/test_placement.py::test_the_device_order_makes_the_best_orders_groups[gb200, racks]",
    ),
    Fault(
        name="an order that the target refuses is advised",
        file="planc/compare/placement.py",
        text="            self.refused.add(i)\n",
        planted="            self.costed[i] = self.timed[i]\n",
        test="tests/compare/test_placement.py::test_orders_that_the_target_refuses_are_left_out",
    ),
    Fault(
        name="the framework that published most speaks for all",
        file="tests/lab/published/residuals.py",
        text="most = len(members) if set(counts) == {name} else MOST_OF_ONE",
        planted="most = len(members)",
        test="tests/calibration/test_intervals.py::test_a_framework_that_published_most_does_not_speak_for_the_others",
    ),
    Fault(
        name="what a device holds already is counted as moved",
        file="planc/compare/resharding_bytes.py",
        text="needed, common = arrays * whole, both * whole",
        planted="needed, common = arrays * whole, 0 * both",
        test="tests/compare/test_diff.py::test_bytes_moved_are_those_of_the_masks[fsdp_tp-fsdp_tp]",
    ),
    Fault(
        name="the first ranks of a short dimension share its rest",
        file="planc/sharding/transfer_core.py",
        text="each = -(-(last - first) // size)",
        planted="each = (last - first) // size",
        test="tests/compare/test_diff.py::test_bytes_moved_are_those_of_the_masks[dp-uneven]",
    ),
    Fault(
        name="the last node of a chain of weights is the same for every sender",
        file="planc/sharding/transfer_core.py",
        text="around = sorted(missing, key=lambda node: (node < sender, node))",
        planted="around = sorted(missing)",
        test="tests/cost/test_weight_sync.py::test_seconds_are_near_the_bound[70b, 2d]",
    ),
    Fault(
        name="a device of a pipeline is taken to hold every layer",
        file="planc/sharding/shard_intervals.py",
        text="stage = plan.mesh.axis(plan.split.axis).place_of(rank) if plan.split else 0",
        planted="stage = 0",
        test="tests/compare/test_diff.py::test_bytes_moved_are_those_of_the_masks[dp-pp]",
    ),
    Fault(
        name="losses in another precision pass for comparable",
        file="planc/compare/same_training.py",
        text='yield from _reason("compute dtype", (one.precision.multiplied, other.precision.multiplied), causes)',
        planted="yield from ()",
        test="tests/compare/test_diff.py::test_what_parts_the_losses",
    ),
    Fault(
        name="a sweep over devices leaves the machines as they were",
        file="planc/compare/sweep_values.py",
        text="return _with_count(text, sentence, devices // each)",
        planted="return text",
        test="tests/compare/test_sweep.py::test_the_rows_are_what_check_says",
    ),
    Fault(
        name="a fitted rate is written without its efficiency",
        file="planc/calibration/fit_machine.py",
        text="rounded(rate * reached) if d in dtypes else rate",
        planted="rate",
        test="tests/calibration/test_fit_machine.py::test_a_known_machine_is_found",
    ),
    Fault(
        name="the framework's time around a call hides beside compute",
        file="planc/costing/step/rank_cost.py",
        text="one_s = g.launch_s + (g.transfer_s if g.waits else share * g.transfer_s)",
        planted="one_s = share * g.launch_s + (g.transfer_s if g.waits else share * g.transfer_s)",
        test="tests/cost/test_compute.py::test_a_call_costs_the_host_whatever_hides",
    ),
    Fault(
        name="the most disturbed step counts",
        file="planc/trainer/measure/coordinator.py",
        text="least = max(CALM, min(shares))",
        planted="least = max(CALM, *shares)",
        test="tests/calibration/test_cpu_contention.py::test_the_least_disturbed_step_counts_without_what_others_took",
    ),
    Fault(
        "the action rewrites a stranger's comment that holds its mark",
        ".ci/comment.py",
        """ and comment["user"]["login"] == os.environ["PLANC_COMMENTER"]""",
        "",
        "tests/cli/test_action.py::test_a_pull_request_has_one_comment",
    ),
    Fault(
        "a plan's name mentions people in a comment",
        "planc/diag/quoting.py",
        """    return f"{marks}{room}{shown}{room}{marks}\"""",
        """    return shown""",
        "tests/compare/test_markdown.py::test_names_of_strangers_are_code",
    ),
    Fault(
        name="a slow link of a what-if keeps its whole bandwidth",
        file="planc/graph/changes.py",
        text="c._replace(share=c.share * share) if i in chosen",
        planted="c if i in chosen",
        test="tests/compare/test_what_if.py::test_a_slow_link_is_the_one_that_the_axis_waits_for",
    ),
    Fault(
        name="a device that another tool's topology has twice is counted twice",
        file="planc/interop/topologies/hardware_text.py",
        text="if plain in self.points:",
        planted="if False:",
        test="tests/interop/test_topologies.py::test_a_wrong_text_has_its_code_and_its_place[a gpu's number twice]",
    ),
    Fault(
        name="a table's runs are costed for no target",
        file="planc/cli/commands/calibrate.py",
        text="examined = examine(plan, target=target, targets=())",
        planted='examined = examine(plan, target="none", targets=())',
        test="tests/cli/test_one_target.py::test_every_command_says_what_check_says",
    ),
    Fault(
        name="a run of a plan without a target has the transfers of one rank of each class",
        file="planc/calibration/probes.py",
        text="rows = None if costed.backend is None else costed.timed.rows",
        planted="rows = costed.timed.rows",
        test="tests/cli/test_one_target.py::test_every_command_says_what_check_says",
    ),
    Fault(
        name="two plans of other targets are compared without any",
        file="planc/cli/commands/diff.py",
        text="""        a, b = _first_plan(options), _second_plan(options)
""",
        planted="""        options.target = options.target or "none"
        a, b = _first_plan(options), _second_plan(options)
""",
        test="tests/cli/test_one_target.py::test_every_command_says_what_check_says",
    ),
    Fault(
        name="a sweep costs its rows for no target",
        file="planc/compare/sweep.py",
        text="yield _row(value, examine(path, set=given, target=target, unsaved={path.resolve(): text}))",
        planted='yield _row(value, examine(path, set=given, target="none", unsaved={path.resolve(): text}))',
        test="tests/cli/test_one_target.py::test_every_command_says_what_check_says",
    ),
    Fault(
        name="an order is compared with the step of any correct program",
        file="planc/compare/placement.py",
        text="today=_order(plan, mesh, rows, costed.step.time_s),",
        planted="today=_order(plan, mesh, rows, costed.step.compute_s),",
        test="tests/cli/test_one_target.py::test_every_command_says_what_check_says",
    ),
    Fault(
        name="the text of a comparison names no target",
        file="planc/cli/views/diff_text.py",
        text='yield f"{bold(letter)} {file}, {named(target)}"',
        planted='yield f"{bold(letter)} {file}"',
        test="tests/cli/test_one_target.py::test_every_command_says_what_check_says",
    ),
    Fault(
        name="a machine's peaks are written anew after a fit to steps",
        file="planc/calibration/fit_machine.py",
        text='sorted({m.probe.dtype for m in found.probes if m.probe.kind == "matmul"} & {*chip.flops_per_s}):',
        planted="sorted(chip.flops_per_s):",
        test="tests/cli/test_calibrate_from.py::test_peaks_stay_as_they_are_written_and_a_run_far_off_is_named",
    ),
    Fault(
        name="runs that the fit does not reach are not named",
        file="planc/calibration/fit_machine.py",
        text="return tuple(s.name for s, predicted_s in pairs if abs(predicted_s / s.seconds - 1) > FAR)",
        planted="return ()",
        test="tests/cli/test_calibrate_from.py::test_peaks_stay_as_they_are_written_and_a_run_far_off_is_named",
    ),
    Fault(
        name="a step on a torus is predicted on the first run's torus",
        file="planc/calibration/probes.py",
        text="return replace(cluster, chip=numbers.chip, link=numbers.link, levels=numbers.levels)",
        planted="return replace(numbers, count=cluster.count, shape=cluster.shape, host_chips=cluster.host_chips)",
        test="tests/cli/test_calibrate_from.py::test_a_torus_keeps_its_shape",
    ),
    Fault(
        name="a guess is costed",
        file="planc/driver/examining.py",
        text="    if checked is not None and request.explicit and request.target != NO_TARGET:\n",
        planted="    if checked is not None:\n        found += _cost(checked, request).diagnostics\n    if False:\n",
        test="tests/language/test_guesses.py::test_no_kind_of_name_is_costed_as_guessed",
    ),
    Fault(
        name="rules judge the model that is guessed",
        file="planc/driver/examining.py",
        text='in unknown} & {"model"}',
        planted="in unknown} & {*()}",
        test="tests/language/test_guesses.py::test_rules_about_the_model_wait_for_its_name",
    ),
    Fault(
        name="a schedule in a file has a whole backward",
        file="planc/ir/plan.py",
        text='any("W" in row for row in self.order) or self.schedule.startswith',
        planted="self.schedule.startswith",
        test="tests/schedules/test_parts.py::test_the_answer_by_name_is_the_answer_by_actions",
    ),
    Fault(
        name="a schedule in lockstep has a whole backward",
        file="planc/ir/plan.py",
        text="self.schedule.startswith(_BACKWARD_IN_TWO_PARTS)",
        planted="self.schedule in _BACKWARD_IN_TWO_PARTS",
        test="tests/schedules/test_parts.py::test_the_answer_by_name_is_the_answer_by_actions",
    ),
    Fault(
        name="an export restates the default of gather",
        file="planc/interop/plan_setup.py",
        text='gather=plan.gather_per if plan.store("params") else None,',
        planted='gather=plan.gather.per if plan.gather else "pass",',
        test="tests/language/test_said_defaults.py::test_of_every_kind_of_schedule",
    ),
    Fault(
        name="torch gathers in each pass whatever the schedule",
        file="backends/cuda/refusals/plan.py",
        text="elif split.splits_backward and sharded.plan.gathers_each_pass():",
        planted="elif split.splits_backward and sharded.plan.gather is None:",
        test="tests/language/test_said_defaults.py::test_of_every_kind_of_schedule",
    ),
    Fault(
        name="a gather sentence counts where nothing is gathered",
        file="planc/ir/plan.py",
        text="""        if not self.store("params", region):
            return "step"
        if self.gather is not None:
            return self.gather.per
""",
        planted="""        if self.gather is not None:
            return self.gather.per
        if not self.store("params", region):
            return "step"
""",
        test="tests/language/test_said_defaults.py::test_a_sentence_about_what_is_not_gathered_changes_nothing",
    ),
    Fault(
        name="a row that fails ends the bench",
        file="tests/lab/published/accuracy.py",
        text="        except Exception as error:  # whatever it is that a row says\n",
        planted="        except ArithmeticError as error:\n",
        test="tests/calibration/test_rows.py::test_a_row_that_fails_is_one_row_s_failure",
    ),
    Fault(
        name="an optimizer that a row names is dropped",
        file="tests/lab/published/plans.py",
        text='    if "adam" not in said or any(',
        planted="    if any(",
        test="tests/calibration/test_rows.py::test_a_field_that_is_not_used_fails_its_row_by_name",
    ),
    Fault(
        name="an option that is off counts as unsaid",
        file="tests/lab/published/row_fields.py",
        text='    if value is None or value in ("", [], {})',
        planted='    if value is None or value is False or value in ("", [], {})',
        test="tests/calibration/test_rows.py::test_a_field_that_is_not_used_fails_its_row_by_name",
    ),
    Fault(
        name="sizes of a catalog's model are not compared with the row's",
        file="tests/lab/published/plans.py",
        text="        _check_sizes(fields, build_model(known), sizes)\n",
        planted="",
        test="tests/calibration/test_rows.py::test_no_field_of_a_row_is_dropped",
    ),
)
