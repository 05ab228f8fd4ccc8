"""Rule W0505 (warning): a large optimizer state is replicated over all data-parallel ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace as replaced
from typing import TYPE_CHECKING

from planc.checks.edits import add, sentence
from planc.checks.recost import gib, recost
from planc.diag.diagnostic import Diagnostic
from planc.diag.registry import Rule
from planc.ir.plan import NOUNS, Store

if TYPE_CHECKING:
    from planc.costing import CostedPlan

SHARE = 0.15
"""Share of a device's memory above which replicated state is reported."""


def check(costed: CostedPlan) -> Iterator[Diagnostic]:
    plan, memory = costed.sharded.plan, costed.memory
    state = memory.per_device_gib.optimizer
    nothing = not any(plan.store(n) for n in NOUNS)
    if not nothing or plan.data_parallel == 1 or state <= SHARE * memory.capacity_gib:
        return
    axes = plan.data_axes
    cause = plan.cause_of_shard("batch", axes[0]) or plan.mesh.cause
    other = recost(replaced(plan, stores=(*plan.stores, Store(noun="optimizer", axes=axes, cause=cause))), costed)
    if other is None:
        return
    yield Diagnostic(
        "W0505",
        f"each of the {plan.data_parallel} data-parallel ranks keeps the same {state:.1f} GiB of optimizer state",
        cause.span,
        help=f"dividing it (ZeRO-1) saves {gib(costed) - gib(other):.1f} GiB on each device, step time"
        f" {other.step.time_s / costed.step.time_s - 1:+.1%}",
        fix=add(plan.mesh, sentence("store", f"optimizer over {', '.join(axes)}")),
    )


RULE = Rule("W0505", check=check)
