"""Faults in the torch_xla runtime and in the portability gate."""

from __future__ import annotations

from .fault import Fault

FAULTS: tuple[Fault, ...] = (
    Fault(
        name="a list of a tensor's values is no read",
        file="backends/torch_xla/audit/stand_in.py",
        text='*("item", "tolist", "numpy",',
        planted='*("item", "numpy",',
        test="tests/torch_xla/test_portability.py::test_a_planted_leak_is_found_at_its_line",
    ),
    Fault(
        name="a mask as an index has a fixed size",
        file="backends/torch_xla/audit/operations.py",
        text="return any(isinstance(index, Tensor) and index.dtype in MASKS for index in args[1])",
        planted="return False",
        test="tests/torch_xla/test_portability.py::test_a_planted_leak_is_found_at_its_line",
    ),
    Fault(
        name="a constant that changes is none",
        file="backends/torch_xla/audit/walk.py",
        text="elif a.numbers != b.numbers:",
        planted="elif len(a.numbers) != len(b.numbers):",
        test="tests/torch_xla/test_portability.py::test_a_planted_leak_is_found_at_its_line",
    ),
    Fault(
        name="a list outside of the step may grow",
        file="backends/torch_xla/audit/containers.py",
        text="if any(id(o) in kept for o in objects):",
        planted="if False:",
        test="tests/torch_xla/test_portability.py::test_a_planted_leak_is_found_at_its_line",
    ),
    Fault(
        name="rows are placed at the wrong expert",
        file="backends/cuda/models/moe.py",
        text="expert = (at[:, None] >= ends).sum(1)",
        planted="expert = (at[:, None] > ends).sum(1)",
        test="tests/torch_xla/test_portability.py::test_the_experts_of_the_stand_in_are_those_of_the_cpu",
    ),
    Fault(
        name="the heads of a linear module's output are not divided",
        file="backends/torch_xla/emit/program.py",
        text="return (*spec[:2], tuple(axis for axes in spec[2:] for axis in axes))",
        planted="return (*spec[:2], ())",
        test="tests/torch_xla/test_emit.py::test_what_modules_return_rests_where_the_plan_says",
    ),
    Fault(
        name="another learning rate is compared all the same",
        file="planc/trainer/receipt/crosscheck.py",
        text="    fields += _courses_apart(receipts)\n",
        planted="",
        test="tests/trainer/test_crosscheck.py::test_runs_of_another_course_are_refused",
    ),
    Fault(
        name="the mean has no budget",
        file="planc/trainer/receipt/crosscheck.py",
        text="(mean_budget is None or mean <= mean_budget)",
        planted="True",
        test="tests/trainer/test_crosscheck.py::test_bf16_has_a_budget_of_the_mean_too",
    ),
    Fault(
        name="the diagnosis begins at the embedding",
        file="planc/trainer/receipt/divergence.py",
        text="key=_depth, reverse=True)",
        planted="key=_depth)",
        test="tests/trainer/test_crosscheck.py::test_a_failed_comparison_names_the_tensor_nearest_to_the_loss",
    ),
)
