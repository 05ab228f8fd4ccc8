"""The checked plan: what layouts are derived for, what is costed and what is lowered."""

from __future__ import annotations

from dataclasses import replace

from planc.diag.diagnostic import Diagnostic
from planc.diag.fast_dataclass import dataclass
from planc.ir.plan import Plan


@dataclass(frozen=True)
class CheckedPlan:
    """A plan in which no plan rule finds an error.

    Made by `planc.checks` alone: `check_plan` runs the rules, `assume_checked` takes the caller's word.
    """

    plan: Plan
    diagnostics: tuple[Diagnostic, ...] = ()
    """The warnings and notes of the plan rules."""

    @property
    def for_planc(self) -> CheckedPlan:
        """The plan as planc's own programs run it, whatever `realise as` names."""
        return replace(self, plan=self.plan.for_planc)
