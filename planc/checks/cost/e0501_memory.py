"""Rule E0501 (error): the plan needs more memory than a device has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from planc.diag.diagnostic import Diagnostic, Fix, Related
from planc.diag.registry import Rule

if TYPE_CHECKING:
    from planc.checks.memory_fixes import CostedFixes
    from planc.costing import CostedPlan

SHOWN = 3
"""Number of changes in the help."""
NEAR = 0.94
"""Hide the lower end of the range if it is within 6 % of the prediction."""


def check(costed: CostedPlan) -> Iterator[Diagnostic]:
    memory, plan = costed.memory, costed.sharded.plan
    worst = memory.worst
    need = worst.per_device_gib
    if costed.may_fit(memory.capacity_gib):
        return
    parts = {k: v for k, v in asdict(need).items() if k != "total" and v >= 0.05}
    shown = ", ".join(f"{name} {gib:.1f}" for name, gib in sorted(parts.items(), key=lambda p: -p[1]))
    help, fix = _fix(costed)
    stage = f"stage {worst.stage}" if len(memory.stages) > 1 else "a device"
    yield Diagnostic(
        "E0501",
        f"{stage} needs {need.total:.1f} GiB of {memory.capacity_gib:.1f} GiB at the {worst.peak_at}"
        f"{_lower_end(costed)}",
        plan.cluster.cause.span,
        label=f"{plan.cluster.chip.name}: {memory.capacity_gib:.0f} GiB",
        help=f"parts: {shown}. {help}",
        related=(Related(plan.batch.cause.span, f"{plan.batch.microbatch_sequences} sequences a microbatch"),),
        fix=fix,
    )


def _lower_end(costed: CostedPlan) -> str:
    """Return the least memory as a clause; "" if it is near the prediction."""
    memory = costed.memory
    low = costed.lower_bound_gib
    return "" if low > NEAR * memory.per_device_gib.total else f", and {low:.1f} GiB at the least"


def _fix(costed: CostedPlan) -> tuple[str, Fix | None]:
    """Return the help text, which lists edits with their costs, and the edit that makes the plan fit with the fastest
    step."""
    from planc.checks.memory_fixes import combined_fixes, cost_fixes, memory_fixes

    plan, capacity = costed.sharded.plan, costed.memory.capacity_gib
    every = (cost_fixes(costed, m) for m in memory_fixes(plan))
    singles = [t for t in every if t and t.gib < costed.memory.per_device_gib.total - 0.05]
    fitting = sorted((t for t in singles if t.gib <= capacity), key=lambda t: t.time_s)
    if not fitting and (both := combined_fixes(costed, singles, capacity)):
        fitting = [both]
    rest = sorted((t for t in singles if t not in fitting), key=lambda t: t.gib)
    lines = [_line(t, costed, fits=t in fitting) for t in (fitting + rest)[:SHOWN]]
    if not fitting:
        lines.append("more is needed: more devices, or more of them for each copy of the model")
    return "; ".join(lines), fitting[0].fix if fitting else None


def _line(one: CostedFixes, base: CostedPlan, *, fits: bool) -> str:
    saved = one.gib - base.memory.per_device_gib.total
    slower = one.time_s / base.step.time_s - 1
    fit = "fits" if len(one.memory_fixes) == 1 else "together fit"
    verdict = f"{fit}: {one.gib:.1f} GiB" if fits else f"{one.gib:.1f} GiB"
    return f"`{one.title}` {verdict} ({saved:+.1f} GiB, step time {slower:+.0%})"


RULE = Rule("E0501", check=check)
