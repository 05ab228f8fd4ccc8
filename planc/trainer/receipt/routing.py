"""Expert picks: counted for the receipt, and compared between runs that should agree.

A flip is a token that one run routes to another expert than the other run does. Up to the first flip runs differ by
rounding only; from there on by the difference between two experts' outputs. Picks are counted by layer and expert, so
flips that cancel within a layer and step are not seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from planc.ir.model import Model
from planc.ir.plan import Plan

if TYPE_CHECKING:
    from planc.ir.session import Session
    from planc.trainer.receipt.receipt import Receipt

MOST_NUMBERS = 200_000
"""A receipt with more counts than these is no text for people: a longer run keeps none."""

AFTER_A_FLIP = 1e-3
"""Nats per token that losses may differ by from the first flip on."""

Counts = list[list[int]]
"""Picks of one step, by routed layer and expert."""


def counted(plan: Plan, steps: int) -> bool:
    """True if a run of `steps` steps counts its expert picks."""
    layers = routed_layers(plan.model)
    return bool(layers) and steps * layers * plan.model.sizes["experts"] <= MOST_NUMBERS


def routed_layers(model: Model) -> int:
    """The number of layers of `model` that route tokens to experts."""
    return sum(any(op.kind == "route" for op in model.ops[kind]) for kind in model.kinds)


class Picks:
    """The picks of each step of this start, in `found` by the step's number; nothing where nothing is counted."""

    def __init__(self, session: Session, plan: Plan, steps: int) -> None:
        self._session = session if counted(plan, steps) else None
        self._layers = routed_layers(plan.model)
        self.found: dict[int, Counts] = {}

    def take(self, step: int) -> None:
        """Store the picks of `step`. Every process calls it after each step: it is a collective."""
        picks = self._session.routing() if self._session else None
        if picks is not None:
            assert len(picks) == self._layers, f"picks of {len(picks)} layers, the model routes in {self._layers}"
            self.found[step] = picks


def flips(receipts: Sequence[Receipt]) -> list[int] | None:
    """At each step, the number of picks that fell on another expert, between the first of `receipts` and the one that
    differs most.

    None where a run has not counted, or one has other layers or experts than another. Where only some have counted a
    step, as after a run was taken up again, 0.
    """
    if any(not r.measured.routing for r in receipts) or len(_shapes(receipts)) > 1:
        return None
    return [
        _flips_at_step(step, [r.measured.routing or {} for r in receipts])
        for step in range(1, len(receipts[0].losses) + 1)
    ]


def _shapes(receipts: Sequence[Receipt]) -> set[tuple[int, ...]]:
    """The numbers of experts by layer of all steps that were counted."""
    return {tuple(map(len, counts)) for r in receipts for counts in (r.measured.routing or {}).values()}


def _flips_at_step(step: int, runs: Sequence[dict[int, Counts]]) -> int:
    if any(step not in run for run in runs):
        return 0
    first, *others = (run[step] for run in runs)
    return max(_flips_between(first, other) for other in others)


def _flips_between(one: Counts, other: Counts) -> int:
    """Each flip takes one pick from an expert and gives one to another."""
    pairs = [(a, b) for left, right in zip(one, other, strict=True) for a, b in zip(left, right, strict=True)]
    return sum(abs(a - b) for a, b in pairs) // 2


def budgets(budget: float, steps: int, flipped: Sequence[int] | None) -> list[float]:
    """Allowed loss difference (nats) at each of `steps` steps: `budget`, and more from the first step with a flip on.

    `flipped` are the numbers of flips by step; None: none was counted.
    """
    first = next((at for at, n in enumerate(flipped or ()) if n), steps)
    return [budget if at < first else max(budget, AFTER_A_FLIP) for at in range(steps)]
