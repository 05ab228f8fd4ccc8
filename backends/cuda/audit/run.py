"""The audit of one plan: each class of ranks traced, and compared with what was predicted."""

from __future__ import annotations

from planc.cost import cost_plan
from planc.ir.audit import Audit, PeakMemory, compared
from planc.ir.plan import Plan
from planc.ir.sharding import Sharded
from planc.sharding import propagate, semantic_collectives

from ...shrunk import said, shrunk
from ..lower import lower
from ..rules import realise
from .predict import predicted
from .trace import Traced

GIB = 2.0**30


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
    stages = predicted_bytes(sharded)
    return tuple(
        PeakMemory(stage=t.stage, predicted_bytes=stages[t.stage], observed_bytes=t.peak_bytes) for t in traced
    )


def predicted_bytes(sharded: Sharded) -> list[float]:
    """Of each pipeline stage: what the program's own tensors take, without communicators and the runtime."""
    stages = cost_plan(sharded, realise(sharded, semantic_collectives(sharded))).memory.stages
    parts = [s.per_device_gib for s in stages]
    return [(p.total - p.reserve - p.comm_buffers) * GIB for p in parts]
