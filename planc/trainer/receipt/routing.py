"""Counts for the receipt how many tokens the router sends to each expert, and compares the counts between runs.

A flip is a token that two runs route to different experts. Before the first flip, the losses of runs differ only by
rounding; after it, they also differ because experts compute different outputs. Tokens are counted per layer and expert,
so flips that cancel within a layer and step are not detected.
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
"""Maximum number of counts in a receipt, to keep it readable; a longer run stores none."""

AFTER_A_FLIP = 1e-3
"""Allowed difference of losses (nats per token) after the first flip."""

Counts = list[list[int]]
"""Picks of one step, by routed layer and expert."""


def counted(plan: Plan, steps: int) -> bool:
    """True if a run of `steps` steps counts the tokens of each expert: the model has experts, and the counts are not
    too many."""
    layers = routed_layers(plan.model)
    return bool(layers) and steps * layers * plan.model.sizes["experts"] <= MOST_NUMBERS


def routed_layers(model: Model) -> int:
    """Return the number of layers of `model` that route tokens to experts."""
    return sum(any(op.kind == "route" for op in model.ops[kind]) for kind in model.kinds)


class Picks:
    """Collects the number of tokens per expert in `found`, by step since the start of this process. `found` stays empty
    if the run does not count them (`counted`)."""

    def __init__(self, session: Session, plan: Plan, steps: int) -> None:
        self._session = session if counted(plan, steps) else None
        self._layers = routed_layers(plan.model)
        self.found: dict[int, Counts] = {}

    def take(self, step: int) -> None:
        """Store the tokens per expert of `step`. Every process must call this after each step, because it is a
        collective."""
        picks = self._session.routing() if self._session else None
        if picks is not None:
            assert len(picks) == self._layers, f"picks of {len(picks)} layers, the model routes in {self._layers}"
            self.found[step] = picks


def flips(receipts: Sequence[Receipt]) -> list[int] | None:
    """Return, for each step, the largest number of flips between the first of `receipts` and another one.

    None if a run did not count tokens per expert, or if runs have different layers or experts. A step that only some
    runs counted, as after a resume, has 0 flips.
    """
    if any(not r.measured.routing for r in receipts) or len(_shapes(receipts)) > 1:
        return None
    return [
        _flips_at_step(step, [r.measured.routing or {} for r in receipts])
        for step in range(1, len(receipts[0].losses) + 1)
    ]


def _shapes(receipts: Sequence[Receipt]) -> set[tuple[int, ...]]:
    """Return the distinct tuples of expert counts per layer, over all steps in which tokens were counted."""
    return {tuple(map(len, counts)) for r in receipts for counts in (r.measured.routing or {}).values()}


def _flips_at_step(step: int, runs: Sequence[dict[int, Counts]]) -> int:
    if any(step not in run for run in runs):
        return 0
    first, *others = (run[step] for run in runs)
    return max(_flips_between(first, other) for other in others)


def _flips_between(one: Counts, other: Counts) -> int:
    """Return the number of flips between two runs. Each flip takes one token from an expert and gives it to another."""
    pairs = [(a, b) for left, right in zip(one, other, strict=True) for a, b in zip(left, right, strict=True)]
    return sum(abs(a - b) for a, b in pairs) // 2


def budgets(budget: float, steps: int, flipped: Sequence[int] | None) -> list[float]:
    """Return the allowed loss difference (nats) at each of `steps` steps: `budget` before the first flip, and from that
    step on `budget` or AFTER_A_FLIP, whichever is larger.

    `flipped` has the number of flips per step; None if they were not counted.
    """
    first = next((at for at, n in enumerate(flipped or ()) if n), steps)
    return [budget if at < first else max(budget, AFTER_A_FLIP) for at in range(steps)]
