"""Rule E0210 (error): experts are sharded over an axis whose ranks all have the same tokens."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.edits import add, sentence
from planc.diag.diagnostic import Diagnostic
from planc.diag.registry import Rule
from planc.ir.model import EXPERTS
from planc.ir.plan import Plan


def check(plan: Plan) -> Iterator[Diagnostic]:
    if not plan.model.top_k:
        return
    tokens = {*plan.axes_of("batch", "residual"), *plan.axes_of("sequence", "residual")}
    view = plan.view_of(EXPERTS)
    needed = view.of if view is not None else plan.axes_of("experts", EXPERTS)
    for axis in plan.mesh.in_order(needed):
        if axis in tokens:
            continue
        cause = view.cause if view is not None else plan.cause_of_shard("experts", axis, EXPERTS)
        divided = plan.axes_of("heads", "attention") or plan.axes_of("ffn", "ffn")
        rule = f"sequence over {axis}" + (" in residual" if axis in divided else "")
        yield Diagnostic(
            "E0210",
            f"the {plan.mesh.size(axis)} ranks of `{axis}` hold the same tokens and would each send them",
            cause.span if cause else plan.mesh.cause.span,
            help=f"divide the tokens over it: {sentence('shard', rule)}",
            fix=add(plan.mesh, sentence("shard", rule)),
        )


RULE = Rule("E0210", check=check)
