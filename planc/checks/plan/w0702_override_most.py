"""W0702: an override that matches most of the model."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase

from planc.checks.edits import remove
from planc.diag.diagnostic import Diagnostic
from planc.diag.registry import Rule
from planc.ir.plan import Plan


def check(plan: Plan) -> Iterator[Diagnostic]:
    names = [p.name for p in plan.model.params]
    for override in plan.overrides:
        matched = [n for n in names if _matches(n, override.glob)]
        if 2 * len(matched) <= len(names):
            continue
        elements = sum(plan.model.elements(p) * plan.model.copies(p) for p in plan.model.params if p.name in matched)
        yield Diagnostic(
            "W0702",
            f"`{override.glob}` matches {len(matched)} of {len(names)} parameters of {plan.model.name},"
            f" {elements / plan.model.parameters:.0%} of the model",
            override.cause.span,
            help="an override is for the few parameters that the rules do not fit; `*` crosses dots, so"
            " `layers.*` matches every parameter of every layer",
            fix=remove(override.cause),
        )


def _matches(name: str, glob: str) -> bool:
    return fnmatchcase(name, glob) or fnmatchcase(name.removesuffix(".weight"), glob)


RULE = Rule(
    code="W0702",
    title="an override of most of the model",
    reads="plan",
    why="""`*` stands for any characters, dots too. A glob that was meant for one module and matches most
parameters undoes the plan's sentences without saying so.""",
    bad="""plan example
model     llama3_8b
batch     64 x 8192 tokens microbatch 1
cluster   1 x h100_node
mesh      fsdp 2 > tp 4
use       fsdp over fsdp
use       tp   over tp
use       sp   over tp
compute   bf16 reduce fp32
override  layers.** = replicated
recompute blocks
""",
    good="""plan example
model     llama3_8b
batch     64 x 8192 tokens microbatch 1
cluster   1 x h100_node
mesh      fsdp 2 > tp 4
use       fsdp over fsdp
use       tp   over tp
use       sp   over tp
compute   bf16 reduce fp32
override  layers.*.attention.wo = replicated
recompute blocks
""",
    check=check,
)
