"""Rule E0119 (error): `freeze` sentences leave no parameter to train."""

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


RULE = Rule("E0119", check=check)
