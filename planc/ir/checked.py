"""The checked plan: the input of propagation, costing and lowering."""

from __future__ import annotations

from dataclasses import replace

from planc.diag.diagnostic import Diagnostic
from planc.diag.fast_dataclass import dataclass
from planc.ir.plan import Plan


@dataclass(frozen=True)
class CheckedPlan:
    """A plan without errors of any plan rule.

    Only `planc.checks` makes one: `check_plan` runs the rules, `assume_checked` skips them on the caller's
    responsibility.
    """

    plan: Plan
    diagnostics: tuple[Diagnostic, ...] = ()
    """The warnings and notes of the plan rules."""

    @property
    def for_planc(self) -> CheckedPlan:
        """The plan as planc's own programs run it, ignoring `realise as`."""
        return replace(self, plan=self.plan.for_planc)
