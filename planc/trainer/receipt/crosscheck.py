"""Compares the losses of runs by their receipts: `planc.crosscheck/1`.

Losses are compared only between runs that should agree: same plan, data, initial weights, dtype, learning rate and
optimizer. Otherwise the comparison fails and lists the fields that differ. A failed comparison has a diagnosis from
`planc.trainer.receipt.divergence`. The measured budgets are in docs/measured/crosscheck.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from planc.diag import PlanError
from planc.trainer.receipt.divergence import Diagnosis, diagnose
from planc.trainer.receipt.receipt import Receipt, read_receipt
from planc.trainer.receipt.routing import budgets, flips

MUST_AGREE = (
    "plan_sha256",
    "mesh",
    "seed",
    "init_sha256",
    "data_sha256",
    "tokens_per_step",
    "dtype",
)
"""Fields of a receipt that must be equal, beside `course`, for losses to be comparable."""

BUDGETS = {"fp32": 1e-4, "bf16": 2e-2}
MEAN_BUDGETS = {"bf16": 5e-3}
"""Nats per token, by compute dtype: the largest difference at any step, and the mean over all steps.

fp32: in a stable regime rounding stays small: the tiny preset on torch and on JAX parts by 1.4e-6 in 100
steps. Where the learning rate is too high rounding grows without any fault: at 3e-3, one matrix scaled
by 1 + 1.2e-7 moves the same stack's own loss by 9e-3 by step 100. So before a difference late in a run
is called a fault, compare a run with its own nudged self.
bf16: a loss near 5 kept in 8 bits is rounded by up to 1.6e-2, and the budget is a little more; what was measured
is in docs/measured/crosscheck.md.
"""


@dataclass(frozen=True)
class CrossCheck:
    """The answer. `max_abs` and `first_outside_step` (1-based) are None if nothing was compared."""

    budget: float
    max_abs: float | None
    first_outside_step: int | None
    differing_fields: tuple[str, ...]
    ok: bool
    mean_abs: float | None = None
    mean_budget: float | None = None
    diagnosis: Diagnosis | None = None
    """Diagnosis of a failed comparison."""
    routing_flips: int | None = None
    """Number of tokens routed to different experts; None if picks were not counted."""
    first_flip_step: int | None = None
    """From this step on (1-based) losses may differ by `routing.AFTER_A_FLIP`."""

    def to_json(self) -> dict[str, Any]:
        return {
            "budget": self.budget,
            "max_abs": _finite(self.max_abs),
            "first_outside_step": self.first_outside_step,
            "differing_fields": list(self.differing_fields),
            "ok": self.ok,
            "mean_abs": _finite(self.mean_abs),
            "mean_budget": self.mean_budget,
            "routing_flips": self.routing_flips,
            "first_flip_step": self.first_flip_step,
            "diagnosis": self.diagnosis.to_json() if self.diagnosis else None,
        }


def _finite(value: float | None) -> float | None:
    """Return `value`, or None if it is infinite, for JSON. A difference of losses (nats) is infinite if only some of
    the runs skipped a step."""
    return value if value is not None and isfinite(value) else None


def crosscheck(receipts: Sequence[Receipt], budget: float | None = None) -> CrossCheck:
    """Compare two or more receipts. `budget` is the allowed difference (nats) of the losses at any step.

    Without a `budget`, the budgets of the compute dtype apply, including a budget for the mean difference.
    """
    assert len(receipts) >= 2, "a crosscheck takes at least two receipts"
    dtype = receipts[0].dtype
    mean_budget = MEAN_BUDGETS.get(dtype) if budget is None else None
    if budget is None:
        budget = BUDGETS.get(dtype, BUDGETS["fp32"])
    differing = differing_fields(receipts)
    if differing:
        return CrossCheck(budget, None, None, differing, False)
    gaps = spreads(receipts)
    flipped = flips(receipts)
    allowed = budgets(budget, len(gaps), flipped)
    outside = next((step for step, gap in enumerate(gaps, 1) if gap > allowed[step - 1]), None)
    mean = sum(gaps) / len(gaps)
    ok = outside is None and (mean_budget is None or mean <= mean_budget)
    why = None if ok else diagnose(receipts)
    first_flip = next((step for step, n in enumerate(flipped or (), 1) if n), None)
    total = None if flipped is None else sum(flipped)
    return CrossCheck(budget, max(gaps), outside, (), ok, mean, mean_budget, why, total, first_flip)


def otherwise_begun(receipt: Receipt, path: Path) -> list[str]:
    """Return a warning for each receipt in the folder of `path` that has the settings of `receipt` and another target,
    but a different first loss."""
    found = []
    for beside in sorted(path.parent.glob("*.json")):
        with suppress(PlanError):
            other = read_receipt(beside)
            begun = [r.model_copy(update={"losses": r.losses[:1]}) for r in (receipt, other)]
            if other.target != receipt.target and not differing_fields(begun) and not crosscheck(begun).ok:
                mine, its = (f"{r.losses[0]:.4f}" if r.losses[0] is not None else "no number" for r in begun)
                which = f"`planc crosscheck {path} {beside}` says more"
                found.append(f"the first loss is {mine}, and {its} on {other.target}: {which}")
    return found


def differing_fields(receipts: Sequence[Receipt]) -> tuple[str, ...]:
    """Return the names of the fields that make `receipts` incomparable; `losses` among them if the runs have different
    lengths or no steps."""
    first, *others = receipts
    fields = [f for f in MUST_AGREE if any(getattr(r, f) != getattr(first, f) for r in others)]
    fields += _courses_apart(receipts)
    if not first.losses or any(len(r.losses) != len(first.losses) for r in others):
        fields.append("losses")
    return tuple(fields)


def _courses_apart(receipts: Sequence[Receipt]) -> list[str]:
    """Return the names of settings that differ between receipts, as `course.lr`; receipts without settings are
    ignored."""
    courses = [r.course for r in receipts if r.course is not None]
    names = dict.fromkeys(name for course in courses for name in course)
    return [f"course.{name}" for name in names if any(c.get(name) != courses[0].get(name) for c in courses)]


def spreads(receipts: Sequence[Receipt]) -> list[float]:
    """Return for each step the largest minus the smallest loss (nats) of `receipts`; infinite if only some runs skipped
    the step."""
    return [_loss_range(losses) for losses in zip(*(r.losses for r in receipts), strict=True)]


def _loss_range(losses: tuple[float | None, ...]) -> float:
    known = [loss for loss in losses if loss is not None]
    if not known:
        return 0.0
    return max(known) - min(known) if len(known) == len(losses) else float("inf")
