"""Collectives: the communication of a plan, per device and optimizer step."""

from __future__ import annotations

from typing import Literal

from planc.diag.fast_dataclass import dataclass
from planc.ir.base import Cause

CollectiveOp = Literal["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "send_recv"]
NetworkOp = CollectiveOp | Literal["broadcast"]
"""A collective of a plan or a broadcast, as a network runs it."""
Phase = Literal["forward", "backward", "recompute", "optimizer"]
Per = Literal["microbatch", "step"]
"""How often a collective runs: every microbatch, or once a step."""
Carries = Literal["activation", "param", "grad", "update", "scalar"]
"""The tensor in the buffer; `update` is a matrix that is gathered for Muon's orthogonalization."""

NARROW_BYTES = {"float8": 1, "int8": 1}
DTYPE_BYTES: dict[str, int] = {"fp64": 8, "fp32": 4, "bf16": 2, "fp16": 2, "int32": 4, "int64": 8, **NARROW_BYTES}


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """Collective calls of one kind on one pipeline stage, before they have a time.

    `planc/sharding/state_collectives.py` derives those of parameters, gradients and state, `activation_collectives.py`
    those of activations; a backend's rules (`backends/*/rules/`) then change them to what it issues.

    `buffer_bytes` is the larger of the input and output buffer of one call on one device; `count` is the number of
    calls per device and optimizer step, and `per` says if they run in each microbatch or once a step. `realised_by`
    names the realisation rules that changed the row; empty for a semantic one.
    """

    op: CollectiveOp
    axes: tuple[str, ...]
    group_size: int
    stage: int
    phase: Phase
    carries: Carries
    tensor: str
    section: str
    """Part of the model: first, block, last; or step: once for the whole model."""
    dtype: str
    per: Per
    count: int
    buffer_bytes: float
    realised_by: tuple[str, ...] = ()
    cause: Cause | None = None

    @property
    def axis(self) -> str:
        """The axes' names joined by `+`, outermost first."""
        return "+".join(self.axes)

    @property
    def payload_bytes(self) -> float:
        """Bytes of all buffers, per device and optimizer step."""
        return self.buffer_bytes * self.count

    @property
    def wire_bytes(self) -> float:
        """Bytes that one device sends with ring algorithms, per optimizer step."""
        n = self.group_size
        if self.op == "send_recv":
            return self.payload_bytes
        ring = self.payload_bytes * (n - 1) / n
        return 2 * ring if self.op == "all_reduce" else ring
