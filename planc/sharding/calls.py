"""A collective of one block (or other section of the model), before it is counted for a pipeline rank."""

from __future__ import annotations

from planc.diag.fast_dataclass import dataclass
from planc.ir.base import Cause
from planc.ir.collective import Carries, CollectiveOp, Per, Phase
from planc.ir.sharding import Sharded


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A collective of a section: issued `times` times for each microbatch, or once a step if `per` is `step`."""

    op: CollectiveOp
    axes: tuple[str, ...]
    phase: Phase
    carries: Carries
    tensor: str
    dtype: str
    elements: float
    per: Per = "microbatch"
    times: int = 1
    cause: Cause | None = None


def axis_cause(sharded: Sharded, axes: tuple[str, ...]) -> Cause | None:
    """Return the plan's first `shard` sentence over one of these `axes`, as a cause; None if there is none."""
    return next((s.cause for s in sharded.plan.shards if set(axes) & set(s.axes)), None)
