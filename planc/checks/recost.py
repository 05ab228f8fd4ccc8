"""The plan with something changed, costed like the plan itself: what an edit would really bring.

Semantic collectives on both sides, so that a difference is the edit's and not a target's.
"""

from __future__ import annotations

from planc.checks import assume_checked
from planc.cost import CostedPlan, cost_plan
from planc.ir.plan import Plan
from planc.sharding import propagate


def recost(plan: Plan) -> CostedPlan:
    """Memory and time of a plan that would pass its checks."""
    return cost_plan(propagate(assume_checked(plan)))


def gib(costed: CostedPlan) -> float:
    """GiB of the fullest device."""
    return costed.memory.per_device_gib.total


def fits(costed: CostedPlan) -> bool:
    """Whether the fullest device has room."""
    return gib(costed) <= costed.memory.capacity_gib
