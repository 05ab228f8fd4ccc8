"""The rules: a page for each code, and a file for each rule that checks a plan (`plan`) or a costed plan (`cost`).

Other codes are raised where the mistake occurs. Pages are read on demand.
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
    """Return every rule by code, in numeric order."""
    looking = {rule.code: rule for folder in ("plan", "cost") for rule in _rules_of(folder)}
    found = {code: looking.get(code, Rule(code)) for code in codes()}
    assert looking.keys() <= found.keys(), f"no page: {sorted(looking.keys() - found.keys())}"
    return found


def check_plan(plan: Plan) -> CheckedPlan:
    """Run the plan rules on `plan`. Return the plan with their diagnostics. Raises PlanError with all diagnostics if
    one is an error."""
    found = plan_findings(plan)
    if has_errors(found):
        raise PlanError(in_order(found))
    return CheckedPlan(settled(plan), tuple(found))


def assume_checked(plan: Plan) -> CheckedPlan:
    """Return `plan` as a CheckedPlan without running a rule. The caller has run the rules in parts, or knows that they
    hold."""
    return CheckedPlan(settled(plan))


def plan_findings(plan: Plan, left_out: frozenset[str] = frozenset()) -> list[Diagnostic]:
    """Return the diagnostics of the plan rules.

    Args:
        left_out: verbs of sentences that are missing because they could not be read; rules about them are skipped.
    """
    asked = [r for r in _rules_of("plan") if not left_out or (r.about and left_out.isdisjoint(r.about))]
    return [d for rule in asked if rule.check for d in rule.check(plan)]


def broken_rule(plan: Plan, *, of_batch: bool | None = None) -> Diagnostic | None:
    """Return the first diagnostic that a rule finds on `plan`; None if there is none.

    Args:
        plan: any plan.
        of_batch: True runs the rules of the batch, warnings included; False runs all others and None all, errors only.
    """
    for rule in _rules_of("plan"):
        asked = rule.of_batch if of_batch else rule.severity == "error" and not (of_batch is False and rule.of_batch)
        if asked and rule.check and (found := next(iter(rule.check(plan)), None)) is not None:
            return found
    return None


def judge_plan(costed: CostedPlan) -> list[Diagnostic]:
    """Return the diagnostics of the cost rules on `costed`, and those of the plan's own `expect` sentences."""
    return [d for rule in _rules_of("cost") if rule.check for d in rule.check(costed)]


@cache
def _rules_of(folder: str) -> tuple[Rule, ...]:
    return tuple(scan(f"{__name__}.{folder}").values())
