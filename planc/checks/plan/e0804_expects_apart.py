"""Rule E0804 (error): two `expect` sentences contradict each other."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.edits import remove
from planc.diag.diagnostic import Diagnostic, Related
from planc.diag.registry import Rule
from planc.ir.plan import Expect, Plan


def check(plan: Plan) -> Iterator[Diagnostic]:
    strictest: dict[tuple[str, str], Expect] = {}
    for other in plan.expects:
        side = other.cmp[0]
        one = strictest.get((other.metric, "<" if side == ">" else ">"))
        same = strictest.get((other.metric, side))
        strictest[other.metric, side] = other if same is None else max(same, other, key=_strictness)
        if one is None:
            continue
        low, high = (one, other) if one.cmp[0] == ">" else (other, one)
        if low.value > high.value or (low.value == high.value and not (low.cmp == ">=" and high.cmp == "<=")):
            yield Diagnostic(
                "E0804",
                f"{one.metric} cannot be {low.cmp} {low.text} and {high.cmp} {high.text}",
                other.cause.span,
                help="keep one of the two",
                related=(Related(one.cause.span, "the other expectation"),),
                fix=remove(other.cause),
            )


def _strictness(expect: Expect) -> tuple[float, bool]:
    return expect.value if expect.cmp[0] == ">" else -expect.value, len(expect.cmp) == 1


RULE = Rule("E0804", check=check, about=("expect",))
