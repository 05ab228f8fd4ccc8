"""Rule E0805 (error): an `expect no CODE` sentence names a code that planc does not have."""

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
    "E0805",
    check=check,
    about=(
        "expect",
        "expect_no",
    ),
)
