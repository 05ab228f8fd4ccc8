"""The type of a collective of one section of the model, before its calls on a pipeline stage are counted."""

from __future__ import annotations

from planc.diag.fast_dataclass import dataclass
from planc.ir.base import Cause
from planc.ir.collective import Carries, CollectiveOp, Per, Phase
from planc.ir.sharding import Sharded


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One collective. `per` is `microbatch` if it runs for each microbatch, or `step` if it runs once a step."""

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
    """Return the sentence that shards something over one of these `axes`; None if no `shard` sentence does."""
    return next((s.cause for s in sharded.plan.shards if set(axes) & set(s.axes)), None)
