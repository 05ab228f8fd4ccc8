"""Rule N0513 (note): the plan fits as predicted, but the upper end of its memory range leaves too little margin."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from planc.checks.cost.w0508_margin import LEFT
from planc.diag.diagnostic import Diagnostic
from planc.diag.registry import Rule

if TYPE_CHECKING:
    from planc.costing import CostedPlan


def check(costed: CostedPlan) -> Iterator[Diagnostic]:
    from planc.calibration.intervals import allocated_gib, held_gib

    memory, plan = costed.memory, costed.sharded.plan
    high, capacity = held_gib(plan, memory).high, memory.capacity_gib
    if high <= capacity * (1 - LEFT) or memory.worst.per_device_gib.total > capacity * (1 - LEFT):
        return
    runs = allocated_gib(plan, memory)
    yield Diagnostic(
        "N0513",
        f"up to {high:.1f} GiB may be held of {capacity:.1f} GiB: the tensors of four in five of {runs.runs} published"
        f" runs ({runs.of}) took up to {runs.high / runs.estimate:.2f} times what is predicted",
        plan.cluster.cause.span,
        help="a short run shows what it takes; `recompute`, a smaller microbatch or a wider axis to store over makes"
        " room",
    )


RULE = Rule("N0513", check=check)
