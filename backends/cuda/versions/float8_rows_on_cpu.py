"""Float8 matmuls with a scale per row run on the CPU since torch 2.12."""

from __future__ import annotations

from planc.backends.common.version import Difference

DIFFERENCE = Difference(
    since=(2, 12),
    what="`torch._scaled_mm` takes a scale per row on the CPU too; before, only on a GPU",
    reference="torch 2.11, ATen/native/Blas.cpp: the CPU's scaled matmul asks for one scale a matrix",
    handled="nothing: `quantize ... as float8(rowwise)` is for GPUs; on the CPU it does not run on 2.11",
    shown_by="tests/cuda/test_versions.py",
)
