"""W0907: the framework that `realise as` names cannot run a sentence."""

from __future__ import annotations

from collections.abc import Iterator

from planc.diag.diagnostic import Diagnostic, Related
from planc.diag.registry import Rule
from planc.frameworks import OWN, framework
from planc.ir.plan import Plan


def check(plan: Plan) -> Iterator[Diagnostic]:
    """A finding for each sentence of `plan` that its framework lacks."""
    if plan.realise is None or plan.framework == OWN:
        return
    from planc.frameworks.runs import lacks

    title = framework(plan.framework).title
    for lack in lacks(plan, plan.framework):
        yield Diagnostic(
            "W0907",
            f"{title} {lack.why}",
            lack.cause.span,
            help=f"({lack.row.source}); a search leaves such layouts out, `planc export` refuses them",
            related=(Related(plan.realise.cause.span, "the framework"),),
        )


RULE = Rule(
    code="W0907",
    title="the framework cannot run a sentence",
    reads="plan",
    why="""`realise as FRAMEWORK` asks what a framework makes of a plan. One table says which schedules, narrow dtypes,
forms of recomputation, overlaps, offloads and kernels each framework has, with the file of its source that says so.
A sentence that is not in the table is costed all the same, as any program would run it, but no configuration of the
framework says it. A search keeps to the table, and an export reads it.""",
    bad="""plan example
model     llama3_8b
batch     64 x 4096 tokens microbatch 1
cluster   1 x h100_node
mesh      pp 2 > dp 4
use       zero1 over dp
use       pp over pp as zbv
compute   bf16 reduce fp32
recompute blocks
realise   as megatron
""",
    good="""plan example
model     llama3_8b
batch     64 x 4096 tokens microbatch 1
cluster   1 x h100_node
mesh      pp 2 > dp 4
use       zero1 over dp
use       pp over pp as 1f1b
compute   bf16 reduce fp32
recompute blocks
realise   as megatron
""",
    check=check,
)
