"""Cost a changed plan in the same way as the original, to show the effect of an edit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planc.checks import assume_checked
from planc.diag.errors import PlanError
from planc.ir.plan import Plan

if TYPE_CHECKING:
    from planc.costing import CostedPlan


def recost(plan: Plan, costed: CostedPlan) -> CostedPlan | None:
    """Return the changed `plan` with its cost for the target of `costed`; None if the target refuses it.

    The caller guarantees that the changed plan passes the checks.
    """
    from planc.costing import cost_plan
    from planc.sharding.propagate import propagate

    try:
        return cost_plan(propagate(assume_checked(plan)), backend=costed.backend)
    except PlanError:
        return None


def gib(costed: CostedPlan) -> float:
    """Return the total GiB that the fullest device of `costed` needs."""
    return costed.memory.per_device_gib.total
