"""Rule N0605 (note): the device waits for the host to launch ops for a large part of the step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from planc.checks.plan.w0214_batch_swapped import check as swapped
from planc.diag.diagnostic import Diagnostic
from planc.diag.registry import Rule

if TYPE_CHECKING:
    from planc.costing import CostedPlan

SHARE = 0.25
"""Share of the step's time above which the note is given."""


def check(costed: CostedPlan) -> Iterator[Diagnostic]:
    from planc.costing.explain import host_wait_s

    step, plan = costed.step, costed.sharded.plan
    if plan.cluster.chip.hosts_itself or any(swapped(plan)):
        return
    share = host_wait_s(costed) / step.time_s
    if share <= SHARE:
        return
    tokens = plan.batch.microbatch_sequences * plan.batch.sequence_tokens
    yield Diagnostic(
        "N0605",
        f"{share:.0%} of the step waits for the host, which takes"
        f" {plan.cluster.chip.dispatch_s * 1e6:.3g} us to launch an op",
        plan.batch.cause.span,
        help=f"a microbatch of {tokens:,} tokens has kernels shorter than their launches: larger microbatches, or fewer"
        " ranks that share a layer, make them longer",
    )


RULE = Rule("N0605", check=check)
