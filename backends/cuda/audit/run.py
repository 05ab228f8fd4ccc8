"""The audit of one plan: each class of ranks traced, and compared with what was predicted."""

from __future__ import annotations

from planc.backends.common.shrunk import said, shrunk
from planc.backends.cuda.analysis.peak_memory import peaks
from planc.ir.audit import Audit, PeakMemory, compared
from planc.ir.plan import Plan
from planc.ir.sharding import Sharded
from planc.sharding import propagate

from ..lower import lower
from .predict import predicted
from .trace import Traced


def audit(plan: Plan, ranks: int | None = None) -> Audit:
    """Predicted against observed, one rank of each pipeline stage. Raises PlanError when it cannot be lowered.

    `ranks`: at most so many, with fewer data-parallel ones than the plan has; None: all of them.
    """
    from .pool import traces

    small = plan if ranks is None else shrunk(plan, ranks)
    sharded = propagate(small)
    traced = traces(lower(sharded), list(range(small.pipeline)))
    return Audit(
        plan=plan.name,
        plan_sha256=plan.sha256,
        target="cuda",
        devices=plan.mesh.devices,
        traced_devices=small.mesh.devices,
        rows=tuple(r for t in traced for r in compared(t.stage, predicted(sharded, t.stage), t.totals)),
        memory=_memory(sharded, traced),
        normalisations=said(plan, small),
        unparsed=tuple(sorted({name for t in traced for name in t.unparsed})),
    )


def _memory(sharded: Sharded, traced: list[Traced]) -> tuple[PeakMemory, ...]:
    predicted_peaks = peaks(sharded)
    return tuple(
        PeakMemory(stage=t.stage, predicted_bytes=predicted_peaks[t.stage].bytes, observed_bytes=t.peak_bytes)
        for t in traced
    )
