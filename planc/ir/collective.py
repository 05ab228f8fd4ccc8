"""The collectives that a plan leads to, per device and optimizer step."""

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
    """Calls of one collective on one pipeline stage, for one tensor; `TimedCollective` adds the time.

    `planc/sharding/` derives the collectives that layouts need, of state (`state_collectives.py`) and of activations
    (`activation_collectives.py`). A backend's rules (`backends/*/rules/`) change them to those of its program;
    `realised_by` names the rules that changed this one.

    `buffer_bytes` is the larger of the input and output of one call on one device; `count` is the number of calls per
    device and optimizer step, and `per` says if a call runs in each microbatch or once a step.
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
        """The names of the mesh axes joined by `+`, outermost first."""
        return "+".join(self.axes)

    @property
    def payload_bytes(self) -> float:
        """Bytes of the buffers of all calls, per device and optimizer step."""
        return self.buffer_bytes * self.count

    @property
    def wire_bytes(self) -> float:
        """Bytes that one device sends with ring algorithms, per optimizer step."""
        n = self.group_size
        if self.op == "send_recv":
            return self.payload_bytes
        ring = self.payload_bytes * (n - 1) / n
        return 2 * ring if self.op == "all_reduce" else ring  # a reduce-scatter, then an all-gather
