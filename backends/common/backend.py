"""The part of a backend that is the same for every target."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planc.diag.diagnostic import Diagnostic
    from planc.ir.plan import Plan
    from planc.ir.target import Target


class CommonBackend:
    """Methods of `planc.ir.backend.Backend` that are the same for every target that does not define its own."""

    name: str
    target: Target
    launchers: tuple[str, ...] = ()

    def missing_module(self, plan: Plan) -> list[Diagnostic]:
        """E0901 when the target has no bundled module that computes the model of `plan`; else []."""
        from planc.backends.common.bundled import not_bundled

        return not_bundled(plan, self.target)

    def launch_file(self, plan: Plan, kind: str) -> str:
        """Raises AssertionError: without launchers no `kind` of launch file is written for `plan`."""
        raise AssertionError(f"{kind} is none of the launchers of {self.name}")
