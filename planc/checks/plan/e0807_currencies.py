"""E0807: a price is expected in another currency than the one it is given in."""

from __future__ import annotations

from collections.abc import Iterator

from planc.diag.diagnostic import Diagnostic, Related
from planc.diag.registry import Rule
from planc.ir.plan import Plan


def check(plan: Plan) -> Iterator[Diagnostic]:
    """A finding for each price of `plan` that is expected in another currency."""
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


RULE = Rule(
    code="E0807",
    title="two currencies",
    reads="plan",
    why="""An amount of one currency is compared with an amount of the same one. Exchange rates change from day to
day, so planc has none.""",
    bad="""plan example
model     llama3_8b
batch     64 x 8192 tokens microbatch 1
cluster   1 x h100_node
mesh      fsdp 8
use       fsdp over fsdp
compute   bf16 reduce fp32
recompute blocks
train     for 15 B tokens
price     2.50 USD per device hour
expect    price <= 20 kEUR
""",
    good="""plan example
model     llama3_8b
batch     64 x 8192 tokens microbatch 1
cluster   1 x h100_node
mesh      fsdp 8
use       fsdp over fsdp
compute   bf16 reduce fp32
recompute blocks
train     for 15 B tokens
price     2.50 USD per device hour
expect    price <= 20 kUSD
""",
    check=check,
    about=("expect", "price", "cluster"),
)
