"""Refuse sentences that planc checks and costs but for which a target cannot emit a program yet."""

from __future__ import annotations

from collections.abc import Iterator

from planc.backends.common.bundled import not_bundled
from planc.backends.common.refusal import STATE_DTYPES, refused
from planc.diag.diagnostic import Diagnostic
from planc.ir.base import Cause
from planc.ir.model import EXPERTS
from planc.ir.plan import Plan


def unscaled(plan: Plan) -> str:
    """Return why no program computes and reduces in the dtypes of `plan`; "" if one does."""
    named = dict.fromkeys((plan.precision.compute, plan.precision.reduce))
    bad = [dtype for dtype in named if dtype not in STATE_DTYPES]
    return f"it computes and reduces in fp32 or bf16, not {' and '.join(bad)}" if bad else ""


Sentences = Iterator[Cause | None]


def not_lowered(plan: Plan, target: str) -> list[Diagnostic]:
    """Return E0901 at each sentence of `plan` for which planc cannot emit a program yet, and at the model's sentence if
    `target` (a folder below `backends`) has no module for the model; [] if there is none."""
    causes = dict.fromkeys(c for find in (_nouns, _shards, _state) for c in find(plan))
    return not_bundled(plan, target) + [
        refused(
            f"{target} target",
            cause,
            "planc writes no program for it yet",
            help="check and cost take it into account; lower the plan without it",
        )
        for cause in causes
        if cause is not None
    ]


def _nouns(plan: Plan) -> Sentences:
    yield from (tuned.cause for tuned in (plan.freeze, plan.lora) if tuned is not None)
    yield from (overlap.cause for overlap in plan.overlaps)


def _shards(plan: Plan) -> Sentences:
    """Yield the sentences that shard latent dims (`q_lora`, `kv_lora`) or replicate dims other than key heads, which
    any rank may hold in full."""
    yield from (s.cause for s in plan.shards if s.dim in ("q_lora", "kv_lora"))
    yield from (r.cause for r in plan.replicates if r.dim != "kv_heads")


def _state(plan: Plan) -> Sentences:
    yield from (s.cause for s in plan.stores if s.region not in ("", EXPERTS))
