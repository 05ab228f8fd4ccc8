"""Rule W0703 (warning): an override (a sentence about single parameters) changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace as replaced
from fnmatch import fnmatchcase

from planc.checks.edits import remove
from planc.diag.diagnostic import Diagnostic
from planc.diag.registry import Rule
from planc.ir.model import Param
from planc.ir.plan import Override, Plan
from planc.sharding.propagate import index_layout, override_of


def check(plan: Plan) -> Iterator[Diagnostic]:
    for override in plan.overrides:
        mine = [p for p in plan.model.params if _matches(p, override)]
        if not mine:
            continue
        winning = [p for p in mine if override_of(plan, p) is override]
        if not winning:
            why = "a later override matches everything that it matches"
        elif not any(_changes(plan, override, p) for p in winning):
            why = "the rules lay these parameters out like that already"
        else:
            continue
        yield Diagnostic(
            "W0703",
            f"`override {override.glob}` changes nothing: {why}",
            override.cause.span,
            help="leave it out, or name what was meant",
            fix=remove(override.cause, safe=True),
        )


def _matches(param: Param, override: Override) -> bool:
    names = (param.name, param.name.removesuffix(".weight"))
    return any(fnmatchcase(n, override.glob) for n in names)


def _changes(plan: Plan, override: Override, param: Param) -> bool:
    """True if the override changes the layout of `param` in compute or in storage."""
    stored = set(plan.store("params"))
    if any(stored & set(axes) for axes in override.layout.values()):
        return True
    rest = replaced(plan, overrides=tuple(o for o in plan.overrides if o is not override))
    users = [op for ops in plan.model.ops.values() for op in ops if param.name in op.params]
    return any(_param_layout(plan, op, param) != _param_layout(rest, op, param) for op in users)


def _param_layout(plan: Plan, op: object, param: Param) -> dict[str, tuple[str, ...]]:
    layout = index_layout(plan, op)  # type: ignore[arg-type]
    return {d: layout[d] for d in param.dims if layout.get(d)}


RULE = Rule("W0703", check=check)
