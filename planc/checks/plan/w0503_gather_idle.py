"""W0503: a gather sentence that changes nothing."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.edits import remove, replace, sentence
from planc.diag.diagnostic import Diagnostic
from planc.diag.registry import Rule
from planc.ir.plan import Plan


def check(plan: Plan) -> Iterator[Diagnostic]:
    gather = plan.gather
    if gather is None:
        return
    whole = plan.batch.sequences % (plan.data_parallel * plan.batch.microbatch_sequences) == 0
    if not plan.store("params"):
        why = "params are not stored divided, so nothing is gathered a second time"
        fix = remove(gather.cause, safe=True)
    elif gather.per == "microbatch" and whole and plan.microbatches == 1:
        why = "a step has one microbatch, so `per microbatch` is `per step`"
        fix = replace(gather.cause, sentence("gather", "params per step"), safe=True)
    else:
        return
    yield Diagnostic(
        "W0503",
        f"`{gather.cause.sentence}` changes nothing: {why}",
        gather.cause.span,
        help="change it, or leave it out",
        fix=fix,
    )


RULE = Rule(
    code="W0503",
    title="gather without effect",
    reads="plan",
    why="""`gather` says how long parameters that are stored divided stay whole. Without a `store params over` there
is nothing to gather, and with one microbatch a step the two longer periods are the same. A job whose
framework accepts such an option and ignores it uses another amount of memory than was planned.""",
    bad="""plan example
model     llama3_8b
batch     64 x 8192 tokens microbatch 1
cluster   2 x h100_node
mesh      dp 2 > tp 8
use       zero1 over dp
use       tp    over tp
use       sp    over tp
gather    params per pass
compute   bf16 reduce fp32
recompute blocks
""",
    good="""plan example
model     llama3_8b
batch     64 x 8192 tokens microbatch 1
cluster   2 x h100_node
mesh      dp 2 > tp 8
use       zero1 over dp
use       tp    over tp
use       sp    over tp
compute   bf16 reduce fp32
recompute blocks
""",
    check=check,
)
