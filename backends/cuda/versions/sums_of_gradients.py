"""torch 2.15 sums over tensor ranks, in the dtype of the reduction, gradients that were summed in that of compute."""

from __future__ import annotations

from planc.backends.common.version import Difference

DIFFERENCE = Difference(
    since=(2, 15),
    what="under fully_shard, gradients that tensor parallelism leaves as partial sums (those of norms) are all-reduced "
    "over its axis in the dtype of `reduce`; before, in that of `compute`. Calls are as many, their bytes twice as "
    "many in bf16 with fp32",
    reference="torch 2.15, seen in the trace of plans/llama3_70b_v5p.plan: 644 calls and 10,551,296 bytes in bf16, "
    "in fp32 since",
    handled="nothing: they are small beside all else; `planc audit` on 2.15 names them",
    shown_by="tests/cuda/test_versions.py",
)
