"""The rules that produce diagnostics: rules on plans are in `plan`, rules on costed plans in `cost`, one file each.

Codes without a file are raised where the mistake occurs. Every code has a page, which is read when needed.
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
    """Return all rules by diagnostic code, such as E0203, in numeric order."""
    looking = {rule.code: rule for folder in ("plan", "cost") for rule in _rules_of(folder)}
    found = {code: looking.get(code, Rule(code)) for code in codes()}
    assert looking.keys() <= found.keys(), f"no page: {sorted(looking.keys() - found.keys())}"
    return found


def check_plan(plan: Plan) -> CheckedPlan:
    """Run all plan rules on `plan`, and return it with their warnings and notes. Raises PlanError with all diagnostics
    if one is an error."""
    found = plan_findings(plan)
    if has_errors(found):
        raise PlanError(in_order(found))
    return CheckedPlan(settled(plan), tuple(found))


def assume_checked(plan: Plan) -> CheckedPlan:
    """Return `plan` as a CheckedPlan without running any rule: the caller knows that it has no errors."""
    return CheckedPlan(settled(plan))


def plan_findings(plan: Plan, left_out: frozenset[str] = frozenset()) -> list[Diagnostic]:
    """Return the diagnostics of all plan rules on `plan`.

    Args:
        left_out: verbs of sentences that could not be read. Rules about them are skipped.
    """
    asked = [r for r in _rules_of("plan") if not left_out or (r.about and left_out.isdisjoint(r.about))]
    return [d for rule in asked if rule.check for d in rule.check(plan)]


def broken_rule(plan: Plan, *, of_batch: bool | None = None) -> Diagnostic | None:
    """Return the first diagnostic that the selected plan rules report on `plan`; None if they report none.

    Args:
        plan: any plan.
        of_batch: None: rules that report errors; False: those of them that do not depend on the batch; True: all rules
            that depend on the batch, warnings included.
    """
    for rule in _rules_of("plan"):
        asked = rule.of_batch if of_batch else rule.severity == "error" and not (of_batch is False and rule.of_batch)
        if asked and rule.check and (found := next(iter(rule.check(plan)), None)) is not None:
            return found
    return None


def judge_plan(costed: CostedPlan) -> list[Diagnostic]:
    """Return the diagnostics of the cost rules on `costed`, failed `expect` sentences included."""
    return [d for rule in _rules_of("cost") if rule.check for d in rule.check(costed)]


@cache
def _rules_of(folder: str) -> tuple[Rule, ...]:
    return tuple(scan(f"{__name__}.{folder}").values())
