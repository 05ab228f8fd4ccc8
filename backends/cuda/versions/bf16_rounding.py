"""On the CPU, torch 2.15 rounds bf16 gradients under fully_shard differently than in one process."""

from __future__ import annotations

from planc.backends.common.version import Difference

DIFFERENCE = Difference(
    since=(2, 15),
    what="on the CPU gradients of `compute bf16` differ from one process's by up to a rounding (4e-3 of the largest); "
    "before, they were equal to 1e-5. Losses are equal to 1e-7",
    reference="torch 2.15, seen in the layouts one_bf16 and fsdp_bf16 of tests/cuda/cases.py; its reason was not found",
    handled="nothing: programs are right, and fp32 is equal as before",
    shown_by="tests/cuda/cases.py",
)
