"""E0119: `freeze` leaves nothing to train."""

from __future__ import annotations

from collections.abc import Iterator

from planc.diag.diagnostic import Diagnostic
from planc.diag.registry import Rule
from planc.ir.plan import Plan


def check(plan: Plan) -> Iterator[Diagnostic]:
    if plan.freeze is None or any(not p.frozen for p in plan.model.params):
        return
    parts = ", ".join(plan.freeze.parts)
    yield Diagnostic(
        "E0119",
        f"`freeze {parts}` leaves none of {plan.model.parameters:,} parameters to train",
        plan.freeze.cause.span,
        help=f"`freeze {parts} except PART`, or a `lora` sentence",
    )


RULE = Rule(
    code="E0119",
    title="nothing is trained",
    reads="plan",
    why="""A step finds the gradients of the parameters that are trained. With none there is no backward, and torch
stops in the first step (`element 0 of tensors does not require grad`).""",
    bad="""plan example
model     llama3_8b
freeze    model
batch     64 x 8192 tokens microbatch 1
cluster   8 x h100_node
mesh      fsdp 8 > tp 8
use       fsdp over fsdp
use       tp   over tp
use       sp   over tp
compute   fp32
recompute blocks
""",
    good="""plan example
model     llama3_8b
freeze    model except head
batch     64 x 8192 tokens microbatch 1
cluster   8 x h100_node
mesh      fsdp 8 > tp 8
use       fsdp over fsdp
use       tp   over tp
use       sp   over tp
compute   fp32
""",
    check=check,
)
