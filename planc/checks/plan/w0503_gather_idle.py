"""Rule W0503 (warning): a `gather` sentence changes nothing."""

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


RULE = Rule("W0503", check=check)
