"""Rule W0407 (warning): an embedding tied to the head is stored on two pipeline stages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from planc.diag.diagnostic import Diagnostic
from planc.diag.registry import Rule
from planc.sharding.local import stored_elements

if TYPE_CHECKING:
    from planc.costing import CostedPlan


def check(costed: CostedPlan) -> Iterator[Diagnostic]:
    sharded = costed.sharded
    plan = sharded.plan
    if plan.split is None or plan.pipeline == 1:
        return
    ends = [p for p in sharded.params if {"first", "last"} <= set(p.param.sections)]
    for p in ends:
        rows = [r for r in costed.collectives if r.row.tensor == p.param.name and plan.split.axis in r.row.axes]
        size = stored_elements(plan, p, p.stored["params"] or p.stored["optimizer"]) * 4 / 2**30
        seconds = max((r.time_s for r in rows), default=0.0)
        yield Diagnostic(
            "W0407",
            f"{p.param.name} is tied to the head and is stored on the first and the last of {plan.pipeline} stages:"
            f" {size:.2f} GiB a device of master weights, twice, equal only while both get the same gradient",
            plan.split.cause.span,
            help=f"the gradient is summed between the two stages, {seconds * 1e3:.1f} ms a step; a schedule that keeps"
            " both ends on one rank (zbv, dualpipev), or a model that is not tied, needs neither",
        )


RULE = Rule("W0407", check=check)
