"""The rules: a page for each code, and a file for each rule that looks at a plan (`plan`) or at its cost (`cost`).

All other codes are raised where the mistake is met. No page is read before somebody asks for one.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from planc.diag.diagnostic import Diagnostic, has_errors, in_order
from planc.diag.errors import PlanError
from planc.diag.registry import Rule, codes, scan
from planc.ir.checked import CheckedPlan
from planc.ir.plan import Plan
from planc.language.framework_rules import settled

if TYPE_CHECKING:
    from planc.costing import CostedPlan


@cache
def rules() -> dict[str, Rule]:
    """Every rule by code, in order of its number."""
    looking = {rule.code: rule for folder in ("plan", "cost") for rule in _rules_of(folder)}
    found = {code: looking.get(code, Rule(code)) for code in codes()}
    assert looking.keys() <= found.keys(), f"no page: {sorted(looking.keys() - found.keys())}"
    return found


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


def broken_rule(plan: Plan, *, of_batch: bool | None = None) -> Diagnostic | None:
    """The first finding of a broken rule on `plan`; None without.

    Args:
        plan: any plan.
        of_batch: True asks the rules of the batch, warnings too; False those of all others, None all, for errors alone.
    """
    for rule in _rules_of("plan"):
        asked = rule.of_batch if of_batch else rule.severity == "error" and not (of_batch is False and rule.of_batch)
        if asked and rule.check and (found := next(iter(rule.check(plan)), None)) is not None:
            return found
    return None


def judge_plan(costed: CostedPlan) -> list[Diagnostic]:
    """Findings of the cost rules on `costed` and of the plan's own `expect` sentences, errors among them."""
    return [d for rule in _rules_of("cost") if rule.check for d in rule.check(costed)]


@cache
def _rules_of(folder: str) -> tuple[Rule, ...]:
    return tuple(scan(f"{__name__}.{folder}").values())
