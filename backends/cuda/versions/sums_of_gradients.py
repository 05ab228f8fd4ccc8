"""torch 2.15 all-reduces gradients over tensor ranks in the reduce dtype; before, in the compute dtype."""

from __future__ import annotations

from planc.backends.common.version import Difference

DIFFERENCE = Difference(
    since=(2, 15),
    what="under fully_shard, gradients that tensor parallelism leaves as partial sums (of norms) are all-reduced in "
    "the dtype of `reduce`; before, in that of `compute`: as many calls, twice the bytes",
    reference="torch 2.15, seen in the trace of plans/llama3_70b_v5p.plan",
    handled="nothing: they are small beside all else; `planc audit` on 2.15 names them",
    shown_by="tests/cuda/test_versions.py",
)
