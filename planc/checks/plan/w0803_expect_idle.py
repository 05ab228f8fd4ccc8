"""Rule W0803 (warning): an `expect` sentence cannot fail."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.edits import replace, sentence
from planc.diag.diagnostic import Diagnostic
from planc.diag.registry import Rule
from planc.ir.plan import Expect, Plan


def check(plan: Plan) -> Iterator[Diagnostic]:
    chip = plan.cluster.chip
    most = {"memory": chip.memory_bytes / chip.devices, "mfu": 1.0, "bubble": 1.0, "exposed_comm": 1.0}
    for expect in plan.expects:
        above = expect.metric in most and expect.cmp[0] == "<" and expect.value > most[expect.metric]
        below = expect.cmp == ">=" and expect.value <= 0
        if not above and not below:
            continue
        bound = _bound(expect, most[expect.metric]) if above else ""
        yield Diagnostic(
            "W0803",
            f"`{expect.metric} {expect.cmp} {expect.text}` cannot fail"
            + (f": {_limit_text(expect, bound, chip.name)}" if above else ": no metric is below 0"),
            expect.cause.span,
            help="an expectation is a test of the plan: write the value that it must keep",
            fix=replace(expect.cause, sentence("expect", f"{expect.metric} {expect.cmp} {bound}")) if above else None,
        )


def _bound(expect: Expect, most: float) -> str:
    return f"{int(most / 2**30)} GiB" if expect.metric == "memory" else "100 %"


def _limit_text(expect: Expect, bound: str, chip: str) -> str:
    return f"a device of {chip} has {bound}" if expect.metric == "memory" else f"it is a share, at most {bound}"


RULE = Rule("W0803", check=check)
