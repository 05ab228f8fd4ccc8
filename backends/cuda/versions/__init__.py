"""The versions of torch that programs are emitted for, and their differences, one file each."""

from __future__ import annotations

from planc.backends.common.version import Framework
from planc.backends.cuda.torch_versions import PINNED, VERSIONS
from planc.backends.cuda.versions import (
    bf16_rounding,
    division_inside_a_dimension,
    evaluation_of_v_schedules,
    float8_rows_on_cpu,
    gather_with_gradient,
    rows_of_linear_layers,
    stages_on_one_rank,
    sums_of_gradients,
)

TORCH = Framework(
    name="torch",
    module="torch",
    pinned=PINNED,
    versions=VERSIONS,
    tried=VERSIONS,
    differences=(
        stages_on_one_rank.DIFFERENCE,
        rows_of_linear_layers.DIFFERENCE,
        division_inside_a_dimension.DIFFERENCE,
        gather_with_gradient.DIFFERENCE,
        float8_rows_on_cpu.DIFFERENCE,
        evaluation_of_v_schedules.DIFFERENCE,
        bf16_rounding.DIFFERENCE,
        sums_of_gradients.DIFFERENCE,
    ),
    too_old="is too old: on 2.9 tensor parallelism had wrong gradients",
)
"""With torch 2.9 the test layouts fsdp and zero1 train like one process, fsdp_tp_sp has gradient errors larger than the
gradients, and 1f1b fails in gloo. 2.10 was not tried."""
