"""Rule W0502 (warning): a `recompute` sentence saves no memory."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.edits import remove, replace, sentence
from planc.diag.diagnostic import Diagnostic
from planc.diag.registry import Rule
from planc.ir.plan import Plan
from planc.sharding.recompute import names_op, replay


def check(plan: Plan) -> Iterator[Diagnostic]:
    cause = plan.recompute.cause
    if cause is None or not plan.recompute.ops or plan.recompute.blocks:
        return
    run = {name for section in plan.model.blocks for name in replay(plan, section).ops}
    ops = [op for section in plan.model.blocks for op in plan.model.ops[section]]
    idle = [w for w in plan.recompute.ops if not any(names_op(w, op) and op.name in run for op in ops)]
    if not idle:
        return
    rest = [w for w in plan.recompute.ops if w not in idle]
    verb = "saves" if len(idle) == 1 else "save"
    yield Diagnostic(
        "W0502",
        f"recomputing {', '.join(idle)} {verb} nothing: the backward does not need the recomputed outputs",
        cause.span,
        help="leave it out; `planc explain model NAME` lists the ops, attention.core and ffn.swiglu keep the most",
        fix=replace(cause, sentence("recompute", ", ".join(rest)), safe=True) if rest else remove(cause, safe=True),
    )


RULE = Rule("W0502", check=check)
