"""Rule N0512 (note): parameters are gathered for each microbatch or pass although memory suffices to keep them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace as replaced
from typing import TYPE_CHECKING

from planc.checks.edits import add, replace, sentence
from planc.checks.recost import gib, recost
from planc.diag.diagnostic import Diagnostic
from planc.diag.registry import Rule
from planc.ir.plan import Gather, Period, Plan

if TYPE_CHECKING:
    from planc.costing import CostedPlan

EXPOSED = 0.1
"""Share of the step that is exposed communication of parameters and gradients, which share the links."""
GAIN = 0.1
FULL = 0.9
"""Largest share of a device's memory after the change."""

PERIODS: tuple[Period, ...] = ("microbatch", "step")
"""In order of increasing memory."""


def check(costed: CostedPlan) -> Iterator[Diagnostic]:
    plan = costed.sharded.plan
    waits = sum(r.exposed_s for r in costed.collectives if r.row.carries in ("param", "grad"))
    if plan.gather_per_in("") == "step" or plan.microbatches == 1:
        return
    if waits < EXPOSED * costed.step.time_s:
        return
    tried = [(per, recost(_with_gather_per(plan, per), costed)) for per in PERIODS if per != plan.gather_per]
    fitting = [(per, other) for per, other in tried if other and gib(other) <= FULL * other.memory.capacity_gib]
    if not fitting:
        return
    per, other = min(fitting, key=lambda t: t[1].step.time_s)
    gain = 1 - other.step.time_s / costed.step.time_s
    if gain < GAIN:
        return
    text = sentence("gather", f"params per {per}")
    cause = plan.gather.cause if plan.gather else plan.cause_of_store("params")
    yield Diagnostic(
        "N0512",
        f"{waits / costed.step.time_s:.0%} of the step waits for parameters and gradients: parameters are gathered"
        f" per {plan.gather_per}, and a step has {plan.microbatches} microbatches",
        (cause or plan.mesh.cause).span,
        help=f"`gather params per {per}` makes the step {gain:.0%} shorter and takes {gib(other) - gib(costed):+.1f}"
        f" GiB, {gib(other):.1f} of {other.memory.capacity_gib:.0f}",
        fix=replace(plan.gather.cause, text) if plan.gather else add(plan.mesh, text),
    )


def _with_gather_per(plan: Plan, per: Period) -> Plan:
    return replaced(plan, gather=Gather(per=per, bucket=plan.bucket_layers, cause=plan.mesh.cause))


RULE = Rule("N0512", check=check)
