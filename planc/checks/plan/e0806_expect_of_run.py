"""Rule E0806 (error): `expect` bounds days, device hours or price, but no sentence gives the run's length or price."""

from __future__ import annotations

from collections.abc import Iterator

from planc.diag.diagnostic import Diagnostic
from planc.diag.registry import Rule
from planc.ir.plan import Plan

NEEDS = {"days": ("train",), "device_hours": ("train",), "price": ("train", "price")}
"""The sentences that determine each metric of the whole run."""
EXAMPLES = {"train": "train for 15 T tokens", "price": "price 2.50 USD per device hour"}


def check(plan: Plan) -> Iterator[Diagnostic]:
    """Yield a diagnostic for each `expect` sentence of `plan` without a value because another sentence is missing."""
    for expect in plan.expects:
        missing = [verb for verb in NEEDS.get(expect.metric, ()) if getattr(plan, verb) is None]
        if missing:
            yield Diagnostic(
                "E0806",
                f"{expect.metric} is of the whole run, and no `{'` and no `'.join(missing)}` sentence says "
                + ("how long it trains" if missing == ["train"] else "what it costs"),
                expect.cause.span,
                help="such as: " + "; ".join(EXAMPLES[verb] for verb in missing),
            )


RULE = Rule("E0806", check=check, about=("expect", "train", "price", "cluster"))
