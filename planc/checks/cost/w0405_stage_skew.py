"""Rule W0405 (warning): one pipeline stage takes longer than the others, and a better split of the layers exists."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace as replaced
from typing import TYPE_CHECKING

from planc.checks.edits import sentence
from planc.checks.recost import gib, recost
from planc.checks.stages import even_stages, rank_seconds, stages_text
from planc.diag.diagnostic import Diagnostic, Edit, Fix
from planc.diag.registry import Rule
from planc.ir.plan import Plan, Split

if TYPE_CHECKING:
    from planc.costing import CostedPlan

SKEW = 1.1
"""Slowest stage over the mean above which other splits are tried."""
GAIN = 0.05
"""Smallest gain, as a share of the step's time, that justifies uneven stages."""


def check(costed: CostedPlan) -> Iterator[Diagnostic]:
    sharded = costed.sharded
    plan, split = sharded.plan, sharded.plan.split
    if split is None or plan.model.layers < len(split.stages) or len(split.stages) == 1:
        return
    seconds = rank_seconds(sharded)
    mean = sum(seconds) / len(seconds)
    slowest = max(range(len(seconds)), key=lambda r: seconds[r])
    if seconds[slowest] < SKEW * mean:
        return
    stages = even_stages(sharded)
    other = recost(replaced(plan, split=replaced(split, stages=stages)), costed)
    if other is None:
        return
    gain = 1 - other.step.time_s / costed.step.time_s
    if gain < GAIN or gib(other) > max(gib(costed), other.memory.capacity_gib):
        return
    text = stages_text(stages)
    used = ", ".join(f"{s.per_device_gib.total:.0f}" for s in costed.memory.stages)
    yield Diagnostic(
        "W0405",
        f"stage {slowest} takes {seconds[slowest] / mean - 1:.0%} longer than the mean of the stages",
        split.cause.span,
        help=f"stages {text} make the step {gain:.0%} shorter, the fullest device {gib(other) - gib(costed):+.1f} GiB"
        f" (GiB by stage now: {used})",
        fix=_write(plan, split, text),
    )


def _write(plan: Plan, split: Split, text: str) -> Fix | None:
    """Return the edit that adds `stages` to the `split` sentence. None if a `use` sentence stands for it and for
    others."""
    others = [o.cause for o in plan.shards] + [o.cause for o in plan.stores]
    if split.cause.via and any(o.span == split.cause.span for o in others):
        return None
    said, _, _ = split.cause.sentence.partition(" stages ")
    target, _, rest = said.partition("split ")
    return Fix(f"write stages {text}", (Edit(split.cause.span, target + sentence("split", f"{rest} stages {text}")),))


RULE = Rule("W0405", check=check)
