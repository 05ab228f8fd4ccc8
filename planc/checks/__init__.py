"""The rules: one file each, holding its code, manual page, examples and check.

`rules()` finds them by scanning this folder. Rules that read `plan` take a Plan, those that read
`cost` a Costed; the rest are manual pages of what is raised where the mistake is met.
"""

from __future__ import annotations

from functools import cache

from planc.cost import Costed
from planc.diag.diagnostic import Diagnostic
from planc.diag.registry import Rule, scan
from planc.ir.plan import Plan


@cache
def rules() -> dict[str, Rule]:
    """Every rule by code."""
    return scan(__name__)


def check_plan(plan: Plan) -> list[Diagnostic]:
    """What the plan rules find."""
    return [d for rule in rules().values() if rule.reads == "plan" and rule.check for d in rule.check(plan)]


def judge_plan(costed: Costed) -> list[Diagnostic]:
    """What the cost rules and the plan's own expectations find."""
    return [d for rule in rules().values() if rule.reads == "cost" and rule.check for d in rule.check(costed)]
