"""Faults in how the language is read."""

from __future__ import annotations

from .fault import Fault

PAIR = "tests/language/test_old_spellings.py::test_an_old_spelling_means_what_the_new_one_does"
MISTAKES = "tests/language/test_all_mistakes.py"

LARGE = "tests/cli/test_large_plans.py"

FAULTS: tuple[Fault, ...] = (
    Fault(
        name="a plan without compute is costed in fp32",
        file="planc/language/build.py",
        text='    "compute": "compute bf16 reduce fp32",\n',
        planted="",
        test="tests/checks/test_findings.py::test_what_decides_the_answer_is_said",
    ),
    Fault(
        name="the peak of MFU is that of the dtype of reductions",
        file="planc/costing/step/step_time.py",
        text="peak_dtype=rated_dtype(chip, plan.precision.multiplied),",
        planted="peak_dtype=rated_dtype(chip, plan.precision.reduce),",
        test="tests/random_plans/test_random_plans.py::test_plans_break_no_promise",
    ),
    Fault(
        name="matmuls in TF32 take the seconds of fp32",
        file="planc/costing/compute/quantize.py",
        text="wide = dtype_s_per_flop(chip, plan.precision.multiplied, library)",
        planted="wide = dtype_s_per_flop(chip, plan.precision.compute, library)",
        test="tests/checks/test_dtypes.py::test_fp16_is_as_bf16_and_tf32_as_fp32_with_faster_matmuls",
    ),
    Fault(
        name="MFU is printed without its peak",
        file="planc/cli/views/report_text.py",
        text="MFU {step.mfu:.1%} of {step.peak}",
        planted="MFU {step.mfu:.1%}",
        test="tests/random_plans/test_random_plans.py::test_plans_break_no_promise",
    ),
    Fault(
        name="expand does not say that nothing runs again",
        file="planc/language/defaults.py",
        text='        yield "recompute none"\n',
        planted="        pass\n",
        test="tests/cli/test_cli.py::test_the_expansion_is_the_same_plan",
    ),
    Fault(
        name="no batch looks swapped",
        file="planc/checks/plan/w0214_batch_swapped.py",
        text="SHORT, MANY = 512, 2048",
        planted="SHORT, MANY = 0, 2048",
        test="tests/checks/test_examples.py::test_bad_plan_yields_exactly_its_code_and_the_offered_edit_works[W0214]",
    ),
    Fault(
        name="a chip has rates of narrow dtypes alone",
        file="planc/language/verbs/hardware.py",
        text="wide = [rate for rate in WIDE_RATES if rate in values]",
        planted="wide = [rate for rate in RATES if rate in values]",
        test="tests/language/test_hardware.py::test_a_chip_has_a_rate_for_what_is_not_narrow",
    ),
    Fault(
        name="a number of hardware may be as small as it likes",
        file="planc/ir/field_types.py",
        text="BYTES_PER_S = Within(1, 1e18)",
        planted="BYTES_PER_S = Within(1e-320, 1e18)",
        test="tests/language/test_hardware.py::test_a_number_that_no_machine_has_is_refused",
    ),
    Fault(
        name="a wire leads to a part",
        file="planc/language/own_graph.py",
        text="if w.text not in self.spans or w.text in self.parts]",
        planted="if w.text not in self.spans]",
        test="tests/graph/test_own_graphs.py::test_a_wire_to_a_part_itself_is_refused",
    ),
    Fault(
        name="every sentence of a file is parsed, however many there are",
        file="planc/syntax/lines.py",
        text="if number >= MOST_SENTENCES or characters > MOST_CHARACTERS:",
        planted="if characters > MOST_CHARACTERS:",
        test=f"{LARGE}::test_a_plan_of_too_many_sentences_is_refused_at_once",
    ),
    Fault(
        name="the override of a parameter is looked for among all of them each time",
        file="planc/sharding/propagate.py",
        text="@cached_on(lambda plan, name: (plan.cache, name))\ndef _overrides",
        planted="def _overrides",
        test=f"{LARGE}::test_the_override_of_a_parameter_is_looked_for_once",
    ),
    Fault(
        name="layouts that use each other write without an end",
        file="planc/language/verbs/use.py",
        text="return draft.written > MOST_SENTENCES",
        planted="return False",
        test=f"{LARGE}::test_layouts_write_an_end_of_sentences",
    ),
    Fault(
        name="an old `9 x 2` is read as nine stages of two",
        file="planc/syntax/old_spellings.py",
        text='size, count = node.words("INT")',
        planted='count, size = node.words("INT")',
        test=f"{PAIR}[stages]",
    ),
    Fault(
        name="a beginning that was a region loses what else it meant",
        file="planc/language/op_names.py",
        text="if before and not (word.text in legal and before <= meant):",
        planted="if before and word.text not in legal:",
        test=f"{PAIR}[a beginning that was a region, too]",
    ),
    Fault(
        name="a layout of one's own with an old name is rewritten",
        file="planc/language/verbs/use.py",
        text="if word.text in OLD_LAYOUTS and word.text not in own:",
        planted="if word.text in OLD_LAYOUTS:",
        test="tests/language/test_old_spellings.py::test_a_layout_of_ones_own_may_have_an_old_name",
    ),
    Fault(
        name="a misspelt verb hides what else is wrong",
        file="planc/driver/examining.py",
        text="if built.plan is None and built.mended is not None:",
        planted="if False:",
        test=f"{MISTAKES}::test_a_misspelling_hides_nothing",
    ),
    Fault(
        name="a rule speaks though a sentence that it reads is missing",
        file="planc/checks/__init__.py",
        text="if not left_out or (r.about and left_out.isdisjoint(r.about))]",
        planted="if True]",
        test=f"{MISTAKES}::test_consequences_are_not_printed",
    ),
    Fault(
        name="a name that an unreadable sentence gives is unknown",
        file="planc/language/draft.py",
        text="if word.text in self.unread:",
        planted="if False:",
        test=f"{MISTAKES}::test_consequences_are_not_printed",
    ),
    Fault(
        name="Muon's matrices are said to have two moments",
        file="planc/ir/updates.py",
        text='return 1 if plan.optimizer.name == "muon" and is_orthogonalised(plan.model, name) else 2',
        planted="return 2",
        test="tests/cost/test_muon.py::test_matrices_of_the_blocks_have_one_moment",
    ),
)
