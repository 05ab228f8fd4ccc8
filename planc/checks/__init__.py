"""The rules: one file each, holding its code, manual page, examples and check.

The folder says what a rule reads: `text`, `plan`, `cost`, `target`, `preset`, `module`, `foreign`, `graph`. Rules that
read `plan` take a Plan, those that read `cost` a CostedPlan; the rest are manual pages of what is raised where the
mistake is met. Only the folders that a check needs are loaded.
"""

from __future__ import annotations

from collections.abc import Container
from functools import cache
from typing import TYPE_CHECKING

from planc.diag.diagnostic import Diagnostic, has_errors, in_order
from planc.diag.errors import PlanError
from planc.diag.registry import Rule, scan
from planc.ir.checked import CheckedPlan
from planc.ir.plan import Plan
from planc.language.framework_rules import settled

if TYPE_CHECKING:
    from planc.cost import CostedPlan

FOLDERS = ("text", "plan", "cost", "target", "preset", "module", "foreign", "graph")


@cache
def rules() -> dict[str, Rule]:
    """Every rule by code."""
    found: dict[str, Rule] = {}
    for folder in FOLDERS:
        more = scan(f"{__name__}.{folder}")
        assert not found.keys() & more.keys(), "a code is used twice"
        assert all(rule.reads == folder for rule in more.values())
        found |= more
    return dict(sorted(found.items(), key=lambda item: (item[0][1:], item[0])))


def check_plan(plan: Plan) -> CheckedPlan:
    """Run the plan rules on `plan`. Raises PlanError with all their findings when one of them is an error."""
    found = plan_findings(plan)
    if has_errors(found):
        raise PlanError(in_order(found))
    return CheckedPlan(settled(plan), tuple(found))


def assume_checked(plan: Plan) -> CheckedPlan:
    """`plan` as a CheckedPlan without running a rule: the caller has run them in parts, or knows them to hold."""
    return CheckedPlan(settled(plan))


def plan_findings(plan: Plan, left_out: frozenset[str] = frozenset()) -> list[Diagnostic]:
    """Findings of the plan rules.

    Args:
        left_out: verbs of sentences that the plan lacks because they could not be read; rules about them wait.
    """
    asked = [r for r in _rules_of("plan") if not left_out or (r.about and left_out.isdisjoint(r.about))]
    return [d for rule in asked if rule.check for d in rule.check(plan)]


def broken_rule(plan: Plan, *, among: Container[str] = (), besides: Container[str] = ()) -> Diagnostic | None:
    """The first finding of a broken rule, of the rules `among`, or of all whose findings are errors but those in
    `besides`; None without."""
    named = (
        [r for r in _rules_of("plan") if r.code in among]
        if among
        else [r for r in _rules_of("plan") if r.severity == "error" and r.code not in besides]
    )
    return next((d for rule in named if rule.check for d in rule.check(plan)), None)


def judge_plan(costed: CostedPlan) -> list[Diagnostic]:
    """Findings of the cost rules on `costed` and of the plan's own `expect` sentences, errors among them."""
    return [d for rule in _rules_of("cost") if rule.check for d in rule.check(costed)]


@cache
def _rules_of(folder: str) -> tuple[Rule, ...]:
    return tuple(scan(f"{__name__}.{folder}").values())
