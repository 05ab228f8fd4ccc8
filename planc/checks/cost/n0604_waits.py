"""Rule N0604 (note): most of the step is communication that compute does not hide."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from planc.diag.diagnostic import Diagnostic, Related
from planc.diag.registry import Rule

if TYPE_CHECKING:
    from planc.costing import CostedPlan

SHARE = 0.5
"""Share of the step's time above which the note is given."""
MIN_FLOPS_PER_S = 1e13
"""Slower chips are not accelerators; plans on them are for testing, not for speed."""


def check(costed: CostedPlan) -> Iterator[Diagnostic]:
    step, plan = costed.step, costed.sharded.plan
    if step.exposed_comm_s <= SHARE * step.time_s or max(plan.cluster.chip.flops_per_s.values()) < MIN_FLOPS_PER_S:
        return
    rows = sorted(costed.collectives, key=lambda r: -r.exposed_s)
    by_axis: dict[str, float] = {}
    for r in rows:
        by_axis[r.row.axis] = by_axis.get(r.row.axis, 0.0) + r.exposed_s
    axis = max(by_axis, key=lambda a: by_axis[a])
    first = next(r for r in rows if r.row.axis == axis)
    tokens = plan.batch.tokens / plan.mesh.devices
    cause = first.row.cause
    yield Diagnostic(
        "N0604",
        f"{step.exposed_comm_s / step.time_s:.0%} of the step waits for transfers,"
        f" {by_axis[axis] / step.time_s:.0%} of it on `{axis}`, which crosses {first.level}",
        cause.span if cause else plan.mesh.cause.span,
        help=f"the largest is {first.row.op} of {first.row.carries}s; {tokens:,.0f} tokens a device and step are"
        f" {'few: a larger batch, or ' if tokens < 4096 else 'there: '}a smaller `{first.row.axes[-1]}`, or one that"
        " stays inside a node, lets the matmuls hide them",
        related=(Related(plan.mesh.cause.span, "the mesh"),),
    )


RULE = Rule("N0604", check=check)
