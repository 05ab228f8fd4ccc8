"""A plan with something changed, costed as the plan itself was: what an edit brings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planc.checks import assume_checked
from planc.diag.errors import PlanError
from planc.ir.plan import Plan

if TYPE_CHECKING:
    from planc.costing import CostedPlan


def recost(plan: Plan, costed: CostedPlan) -> CostedPlan | None:
    """Memory and time of a changed plan that would pass its checks, for the target that `costed` is for.

    None when that target refuses the changed plan: an edit that it cannot do helps nobody.
    """
    from planc.costing import cost_plan
    from planc.sharding.propagate import propagate

    try:
        return cost_plan(propagate(assume_checked(plan)), backend=costed.backend)
    except PlanError:
        return None


def gib(costed: CostedPlan) -> float:
    """GiB of the tensors and the reserve on the fullest device of `costed`."""
    return costed.memory.per_device_gib.total
