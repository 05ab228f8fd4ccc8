"""E0805: `expect no CODE` with a code that planc does not have."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.edits import replace, sentence
from planc.diag.diagnostic import Diagnostic
from planc.diag.registry import Rule
from planc.ir.plan import Plan
from planc.syntax.suggest import nearest


def check(plan: Plan) -> Iterator[Diagnostic]:
    if not plan.expects_no:
        return
    from planc.checks import rules

    for expect in plan.expects_no:
        if expect.code in rules():
            continue
        near = nearest(expect.code, rules())
        yield Diagnostic(
            "E0805",
            f"no finding has the code {expect.code}, so the expectation cannot fail",
            expect.cause.span,
            help=(f"nearest: {', '.join(near)}; " if near else "") + "`planc explain` lists the codes",
            fix=replace(expect.cause, sentence("expect", f"no {near[0]}")) if near else None,
        )


RULE = Rule(
    code="E0805",
    title="an expectation of an unknown code",
    reads="plan",
    why="""`expect no W0601` makes a warning count as a failure. With a code that does not exist the expectation can
never fail.""",
    bad="""plan example
model     llama3_8b
batch     64 x 8192 tokens microbatch 1
cluster   1 x h100_node
mesh      fsdp 8
use       fsdp over fsdp
compute   bf16 reduce fp32
recompute blocks
expect    no W0691
""",
    good="""plan example
model     llama3_8b
batch     64 x 8192 tokens microbatch 1
cluster   1 x h100_node
mesh      fsdp 8
use       fsdp over fsdp
compute   bf16 reduce fp32
recompute blocks
expect    no W0601
""",
    check=check,
    about=(
        "expect",
        "expect_no",
    ),
)
