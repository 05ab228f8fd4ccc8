"""Rule W0508 (warning): the plan fits with almost no margin of memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from planc.diag.diagnostic import Diagnostic
from planc.diag.registry import Rule

if TYPE_CHECKING:
    from planc.costing import CostedPlan

LEFT = 0.04
"""Share of a device's memory that should stay free."""


def check(costed: CostedPlan) -> Iterator[Diagnostic]:
    memory = costed.memory
    worst = memory.worst
    total, capacity = worst.per_device_gib.total, memory.capacity_gib
    held = memory.reserved_gib
    if total <= capacity * (1 - LEFT) or not costed.may_fit(capacity):
        return
    stage = f"stage {worst.stage}" if len(memory.stages) > 1 else "a device"
    if total > capacity:
        yield Diagnostic(
            "W0508",
            f"{stage} may need {total:.1f} of {capacity:.1f} GiB at the {worst.peak_at}: between {held.low:.1f} and"
            f" {held.high:.1f} GiB are held, and {capacity - held.low:.1f} GiB are left at the best",
            costed.sharded.plan.cluster.cause.span,
            help="the lower end is what the tensors take if the allocator loses nothing between them; `recompute`, a"
            " smaller microbatch or a wider axis to store over makes room",
        )
        return
    yield Diagnostic(
        "W0508",
        f"{stage} needs {total:.1f} of {capacity:.1f} GiB at the {worst.peak_at}: {capacity - total:.1f} GiB are left",
        costed.sharded.plan.cluster.cause.span,
        help=f"the prediction counts {worst.per_device_gib.reserve:.1f} GiB for the runtime and fragmentation, but an"
        " unusual batch or another library version can take the rest; `recompute`, a smaller microbatch or a wider"
        " axis to store over makes room",
    )


RULE = Rule("W0508", check=check)
