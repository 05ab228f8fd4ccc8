"""Rule E0801 (error): an `expect` sentence, a bound on a figure such as memory or MFU, does not hold."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from typing import TYPE_CHECKING

from planc.diag.diagnostic import Diagnostic
from planc.diag.registry import Rule
from planc.ir.plan import Expect
from planc.picture.units import money

if TYPE_CHECKING:
    from planc.costing import CostedPlan

OF_THE_RUN = ("days", "device_hours", "price")
"""Metrics of the whole run. E0806 refuses them if the plan has no length or no price."""
COMPARE = {"<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt}


def check(costed: CostedPlan) -> Iterator[Diagnostic]:
    for expect in costed.sharded.plan.expects:
        value = measure(costed, expect.metric)
        if not COMPARE[expect.cmp](value, expect.value):
            yield Diagnostic(
                "E0801",
                f"{expect.metric} is {shown(expect, value)}, expected {expect.cmp} {expect.text}",
                expect.cause.span,
                help="change the plan, or relax the expectation",
            )


def measure(costed: CostedPlan, metric: str) -> float:
    """Return `metric` of the report, in bytes, seconds, days, hours or money, or as a fraction of the step."""
    step, run = costed.step, costed.run
    if metric in OF_THE_RUN:
        value: float | None = getattr(run, metric, None)
        return math.nan if value is None else value
    return {
        "memory": costed.memory.per_device_gib.total * 2**30,
        "step_time": step.time_s,
        "mfu": step.mfu,
        "bubble": step.bubble_s / step.time_s,
        "exposed_comm": step.exposed_comm_s / step.time_s,
    }[metric]


def shown(expect: Expect, value: float) -> str:
    """Return `value` of the expected metric as text with a unit, such as `71.3 GiB`."""
    if expect.metric == "memory":
        return f"{value / 2**30:.1f} GiB"
    if expect.metric == "step_time":
        return f"{value:.3f} s"
    if expect.metric == "days":
        return f"{value:,.2f}"
    if expect.metric == "device_hours":
        return f"{value:,.0f}"
    if expect.metric == "price":
        return money(value, expect.currency)
    return f"{value:.1%}"


RULE = Rule("E0801", check=check)
