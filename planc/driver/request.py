"""A plan as the caller requests it, with values of its `let` numbers and a target."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from planc.checks import check_plan
from planc.diag.diagnostic import Diagnostic, in_order
from planc.diag.errors import PlanError
from planc.frameworks import stack_of
from planc.ir.backend import refusals
from planc.ir.checked import CheckedPlan
from planc.ir.plan import Plan
from planc.ir.sharding import Sharded
from planc.ir.target import NO_TARGET, TARGETS, AnyTarget, Target
from planc.ir.version import Version, dotted, version_of
from planc.language.build import Built, build_file
from planc.lowering import RUNTIMES, load_backend
from planc.sharding.propagate import propagate


def check_arguments(given: dict[str, int], target: str | None) -> None:
    """Raise ValueError if the `given` numbers or `target` are invalid: mistakes of the caller, not of the plan."""
    if target is not None and target not in (*TARGETS, NO_TARGET):
        raise ValueError(f"target {target!r} is not one of {', '.join((*TARGETS, NO_TARGET))}")
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 10**12:
            raise ValueError(f"set[{name!r}] = {value!r} is not a whole number up to 10**12")


def known_version(target: Target, runtime: str, version: str) -> Version | None:
    """Return the framework `version` that the caller wants for a program of `runtime`; None for "" (planc's default).

    Raises ValueError if the target, the runtime or the version is not one of planc's.
    """
    _known_runtime(target, runtime)
    if not version:
        return None
    versions = load_backend(target, runtime).versions
    if (wanted := version_of(version)) not in versions:
        known = ", ".join(map(dotted, versions))
        raise ValueError(f"no programs are written for {runtime or RUNTIMES[target][0]} {version!r}, only for {known}")
    return wanted


def _known_runtime(target: Target, runtime: str) -> None:
    if target not in TARGETS:
        raise ValueError(f"target {target!r} is not one of {', '.join(TARGETS)}")
    if runtime and runtime not in RUNTIMES[target]:
        raise ValueError(f"runtime {runtime!r} is not one of {', '.join(RUNTIMES[target])}")


def checked_or_found(plan: Plan | None) -> tuple[CheckedPlan | None, list[Diagnostic]]:
    """Run the plan rules on `plan`. Return the checked plan (None if a rule finds an error) and all diagnostics."""
    if plan is None:
        return None, []
    try:
        checked = check_plan(plan)
    except PlanError as error:
        return None, list(error.diagnostics)
    return checked, list(checked.diagnostics)


class Request:
    """A plan as the caller requests it: the result of reading the plan, and the target that it is costed for."""

    def __init__(
        self, source: str | Path | Plan, given: dict[str, int], target: AnyTarget | None, unsaved: Mapping[Path, str]
    ) -> None:
        self._source, self._given, self._unsaved = source, given, unsaved
        self.built = self.built_for(target or NO_TARGET)
        explicit = target or self.built.target
        self.explicit = explicit is not None
        plan = self.built.plan or self.built.mended
        self.target: AnyTarget = explicit or (stack_of(plan).target if plan else NO_TARGET)
        if self.target in self.built.on and target is None:
            self.built = self.built_for(self.target)

    def built_for(self, target: AnyTarget) -> Built:
        """Read the plan with its `on TARGET:` sentences for `target`, if there are any."""
        if isinstance(self._source, Plan):
            return Built(self._source, (), {})
        on = "" if target == NO_TARGET else target
        return build_file(Path(self._source), self._given, on, self._unsaved)

    def refusals(self, target: Target, sharded: Sharded) -> list[Diagnostic]:
        """Return the diagnostics with which `target` refuses the plan, read with its `on TARGET:` sentences. `sharded`
        is the plan with the sentences of `self.target`."""
        if not {target, self.target} & self.built.on or target == self.target:
            return refusals(sharded, load_backend(target))
        other = self.built_for(target)
        checked, found = checked_or_found(other.plan)
        if checked is None:
            return [d for d in in_order([*other.diagnostics, *found]) if d.severity == "error"]
        return refusals(propagate(checked.for_planc), load_backend(target))
