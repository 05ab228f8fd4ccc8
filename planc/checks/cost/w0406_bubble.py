"""Rule W0406 (warning): the pipeline bubble is a large part of the step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace as replaced
from math import ceil
from typing import TYPE_CHECKING

from planc.checks.edits import replace, sentence
from planc.checks.recost import recost
from planc.diag.diagnostic import Diagnostic, Fix, Related
from planc.diag.registry import Rule
from planc.ir.plan import Split

if TYPE_CHECKING:
    from planc.costing import CostedPlan

SHARE = 0.3
"""Share of the step's time above which the bubble is reported."""
GOAL = 0.1
"""The bubble that the proposed number of microbatches gives."""


def check(costed: CostedPlan) -> Iterator[Diagnostic]:
    plan, split = costed.sharded.plan, costed.sharded.plan.split
    share = costed.step.bubble_s / costed.step.time_s
    if split is None or share <= SHARE:
        return
    ranks, count = plan.pipeline, plan.microbatches
    wanted = ceil((ranks - 1) * (1 - GOAL) / GOAL / split.chunks / ranks) * ranks
    sequences = wanted * plan.data_parallel * plan.batch.microbatch_sequences
    better, fix = _interleaved(costed, split, share)
    formula = (
        f"(ranks - 1) / (microbatches x chunks + ranks - 1) ="
        f" {(ranks - 1) / (count * split.chunks + ranks - 1):.0%}; {wanted} microbatches"
        f" ({sequences} sequences) bring it to about {GOAL:.0%}"
    )
    known = split.schedule in ("gpipe", "1f1b", "interleaved_1f1b", "looped_bfs")
    yield Diagnostic(
        "W0406",
        f"the pipeline idles for {share:.0%} of the step: {ranks} ranks, {count} microbatches",
        split.cause.span,
        help=(formula if known else "more microbatches or fewer ranks make it smaller") + better,
        related=(Related(plan.batch.cause.span, f"{count} microbatches a data-parallel rank"),),
        fix=fix,
    )


def _interleaved(costed: CostedPlan, split: Split, share: float) -> tuple[str, Fix | None]:
    """Return help and an edit for two stages per rank; ("", None) if impossible or if the bubble gets no smaller."""
    plan = costed.sharded.plan
    stages = 2 * plan.pipeline
    if split.schedule != "1f1b" or plan.microbatches % plan.pipeline or stages > plan.model.layers:
        return "", None
    changed = replaced(split, schedule="interleaved_1f1b", chunks=2, stages=_halved(split))
    if any(a == b for a, b in changed.stages):
        return "", None
    better = recost(replaced(plan, split=changed), costed)
    if better is None:
        return "", None
    other = better.step.bubble_s / better.step.time_s
    text = sentence("split", f"layers over {split.axis} as interleaved_1f1b(chunks = 2)")
    if other >= share:
        return "", None
    return f", interleaved_1f1b(chunks = 2) to {other:.0%}", replace(split.cause, text)


def _halved(split: Split) -> tuple[tuple[int, int], ...]:
    """Return (first layer, end) of each of twice as many stages, split evenly."""
    layers, count = split.stages[-1][1], 2 * len(split.stages)
    base, extra = divmod(layers, count)
    sizes = [base + (i < extra) for i in range(count)]
    return tuple((sum(sizes[:i]), sum(sizes[: i + 1])) for i in range(count))


RULE = Rule("W0406", check=check)
