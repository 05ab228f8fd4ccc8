"""Rule N0121 (note): an op of the model is code that planc does not know, so that it is not sharded."""

from __future__ import annotations

from collections.abc import Iterator

from planc.diag.diagnostic import Diagnostic
from planc.diag.registry import Rule
from planc.ir.plan import Plan


def check(plan: Plan) -> Iterator[Diagnostic]:
    """Yield a note for each op of the model of `plan` that is opaque code."""
    model, cause = plan.model, plan.model.cause
    if cause is None:
        return
    for section, ops in model.ops.items():
        for op in ops:
            if op.kind == "code":
                where = f"in {model.layers_of(section):,} of {model.layers:,} layers"
                amount = sum(model.elements(model.param[p]) for p in op.params)
                yield Diagnostic(
                    "N0121",
                    f"{op.name} ({op.code_line}) stays whole {where}, {amount:,} parameters each time: {op.code_why}",
                    cause.span,
                    help="the batch divides it, and `store ... over` its parameters; no tensor axis does",
                )


RULE = Rule("N0121", check=check)
