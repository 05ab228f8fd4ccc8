"""Rule E0807 (error): an `expect price` sentence has another currency than the price of a device hour."""

from __future__ import annotations

from collections.abc import Iterator

from planc.diag.diagnostic import Diagnostic, Related
from planc.diag.registry import Rule
from planc.ir.plan import Plan


def check(plan: Plan) -> Iterator[Diagnostic]:
    """Yield a diagnostic for each `expect price` sentence of `plan` in another currency than its price."""
    price = plan.price
    for expect in plan.expects:
        if price is not None and expect.metric == "price" and expect.currency != price.currency:
            yield Diagnostic(
                "E0807",
                f"a price in {expect.currency} is expected, and the machine is paid in {price.currency}",
                expect.cause.span,
                help=f"write both in one currency: planc knows no exchange rates; `price` says {price.currency}",
                related=(Related(price.cause.span, "the price"),),
            )


RULE = Rule("E0807", check=check, about=("expect", "price", "cluster"))
