"""Rule W0702 (warning): an override (a sentence about single parameters) matches most parameters of the model."""

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


RULE = Rule("W0702", check=check)
