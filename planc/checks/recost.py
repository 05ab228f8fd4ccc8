"""Costs a changed plan as the original was costed, to show the effect of an edit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planc.checks import assume_checked
from planc.diag.errors import PlanError
from planc.ir.plan import Plan

if TYPE_CHECKING:
    from planc.costing import CostedPlan


def recost(plan: Plan, costed: CostedPlan) -> CostedPlan | None:
    """Return a changed `plan`, costed for the target of `costed`. The changed plan must pass the checks.

    None if the target refuses the changed plan, since such an edit is useless.
    """
    from planc.costing import cost_plan
    from planc.sharding.propagate import propagate

    try:
        return cost_plan(propagate(assume_checked(plan)), backend=costed.backend)
    except PlanError:
        return None


def gib(costed: CostedPlan) -> float:
    """Return the GiB of tensors and reserve on the fullest device of `costed`."""
    return costed.memory.per_device_gib.total
