"""`CheckedPlan`, the input of propagation, costing and lowering."""

from __future__ import annotations

from dataclasses import replace

from planc.diag.diagnostic import Diagnostic
from planc.diag.fast_dataclass import dataclass
from planc.ir.plan import Plan


@dataclass(frozen=True)
class CheckedPlan:
    """A plan in which no plan rule (`planc.checks`) found an error.

    Only `planc.checks` creates one: `check_plan` runs the rules, `assume_checked` skips them for a caller who vouches
    for the plan.
    """

    plan: Plan
    diagnostics: tuple[Diagnostic, ...] = ()
    """The warnings and notes of the plan rules."""

    @property
    def for_planc(self) -> CheckedPlan:
        """This plan without the policy of a framework (`realise as`): as planc's own programs run it."""
        return replace(self, plan=self.plan.for_planc)
