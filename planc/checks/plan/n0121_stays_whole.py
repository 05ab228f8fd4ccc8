"""N0121: code of a model that no op of planc is stays whole."""

from __future__ import annotations

from collections.abc import Iterator

from planc.diag.diagnostic import Diagnostic
from planc.diag.registry import Rule
from planc.ir.plan import Plan


def check(plan: Plan) -> Iterator[Diagnostic]:
    """A note for each op of the model of `plan` that is code of its own."""
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


RULE = Rule(
    code="N0121",
    title="code stays whole",
    reads="plan",
    why="""`model from transformers` and `model from code` find the parts of a module that planc has ops for: norms,
attention, feed-forward layers, experts. Code that is none of these is run as it is, on whole sequences and with all of
its parameters: every rank of a tensor axis computes the same. This note says where it stands, how many parameters it
has and why it is no part that planc knows. Its FLOPs and memory are counted when it is read.""",
    bad="",
    good="",
    check=check,
)
