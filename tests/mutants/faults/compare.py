"""Faults in what compares, sweeps and calibrates."""

from __future__ import annotations

from .fault import Fault

FAULTS: tuple[Fault, ...] = (
    Fault(
        name="FSDP2 holds gathered blocks beside the loss",
        file="planc/frameworks/torch.py",
        text="gathered_in_loss=False",
        planted="gathered_in_loss=True",
        test="tests/calibration/test_accuracy.py::test_a_loss_in_bf16_and_gradients_that_are_added_up_whole",
    ),
    Fault(
        name="a table that tensor parallelism leaves whole is divided",
        file="planc/calibration/plans.py",
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
        file="planc/calibration/residuals.py",
        text="most = len(members) if set(counts) == {name} else MOST_OF_ONE",
        planted="most = len(members)",
        test="tests/calibration/test_intervals.py::test_a_framework_that_published_most_does_not_speak_for_the_others",
    ),
    Fault(
        name="what a device holds already is counted as moved",
        file="planc/compare/resharding_bytes.py",
        text="lacking -= both * _overlap(t.before.piece(rank), piece) * t.times",
        planted="lacking -= 0 * both",
        test="tests/compare/test_diff.py::test_bytes_moved_are_those_of_the_masks[fsdp_tp-fsdp_tp]",
    ),
    Fault(
        name="the first ranks of a short dimension share its rest",
        file="planc/compare/shard_intervals.py",
        text="each = -(-(last - first) // axis.size)",
        planted="each = (last - first) // axis.size",
        test="tests/compare/test_diff.py::test_bytes_moved_are_those_of_the_masks[dp-uneven]",
    ),
    Fault(
        name="a device of a pipeline is taken to hold every layer",
        file="planc/compare/shard_intervals.py",
        text="stage = plan.mesh.axis(plan.split.axis).place_of(rank) if plan.split else 0",
        planted="stage = 0",
        test="tests/compare/test_diff.py::test_bytes_moved_are_those_of_the_masks[dp-pp]",
    ),
    Fault(
        name="losses in another precision pass for comparable",
        file="planc/compare/same_training.py",
        text='yield from _reason("compute dtype", (one.precision.compute, other.precision.compute), causes)',
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
        file="planc/cost/step/rank_cost.py",
        text="one_s = g.launch_s + (g.transfer_s if g.waits else share * g.transfer_s)",
        planted="one_s = share * g.launch_s + (g.transfer_s if g.waits else share * g.transfer_s)",
        test="tests/cost/test_compute.py::test_a_call_costs_the_host_whatever_hides",
    ),
    Fault(
        name="the most disturbed step counts",
        file="planc/trainer/measure/coordinator.py",
        text="return min((max(CALM, share), s * (1 - share), share)",
        planted="return max((max(CALM, share), s * (1 - share), share)",
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
)
