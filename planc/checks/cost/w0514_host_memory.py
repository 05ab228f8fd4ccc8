"""Rule W0514 (warning): what the plan keeps in host memory is more than the host has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from planc.diag.diagnostic import Diagnostic
from planc.diag.registry import Rule

if TYPE_CHECKING:
    from planc.costing import CostedPlan


def check(costed: CostedPlan) -> Iterator[Diagnostic]:
    from planc.costing.step.offload import host_bytes

    plan, in_flight = costed.sharded.plan, costed.timed.timeline.in_flight
    chip = plan.cluster.chip
    if not plan.offloads or not chip.host_memory_bytes:
        return
    held = [host_bytes(costed.sharded, rank, sum(dict(in_flight[rank]).values())) for rank in range(plan.pipeline)]
    need, has = max(held) * chip.devices * plan.cluster.host_chips, chip.host_memory_bytes * plan.cluster.host_chips
    if need <= has:
        return
    yield Diagnostic(
        "W0514",
        f"a host keeps {need / 2**30:,.0f} GiB for its {plan.cluster.host_chips * chip.devices} devices, and has"
        f" {has / 2**30:,.0f} GiB",
        plan.offloads[0].cause.span,
        label=f"{need / has:.1f} times the memory of a host",
        help="state that more devices share takes less of each host (`store optimizer over ...`); a host with more"
        f" memory is said in a hardware file: `host_memory` of `{chip.name}`, for each chip",
    )


RULE = Rule("W0514", check=check)
