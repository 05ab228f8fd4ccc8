"""W0502: a recompute sentence that changes nothing."""

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


RULE = Rule(
    code="W0502",
    title="recompute without effect",
    reads="plan",
    why="""Recomputing an op helps when its output is kept for the backward. The output of an addition, or of the
last projection of a block, is not: the sentence changes neither memory nor time, so the memory that its
author expected to save is still in use.""",
    bad="""plan example
model     llama3_8b
batch     64 x 8192 tokens microbatch 1
cluster   2 x h100_node
mesh      fsdp 2 > tp 8
use       fsdp over fsdp
use       tp   over tp
use       sp   over tp
compute   bf16 reduce fp32
recompute attention.core, ffn.down
""",
    good="""plan example
model     llama3_8b
batch     64 x 8192 tokens microbatch 1
cluster   2 x h100_node
mesh      fsdp 2 > tp 8
use       fsdp over fsdp
use       tp   over tp
use       sp   over tp
compute   bf16 reduce fp32
recompute attention.core
""",
    check=check,
)
