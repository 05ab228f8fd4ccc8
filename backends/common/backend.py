"""The base class of all backends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from planc.backends.common.version import Framework
    from planc.diag.diagnostic import Diagnostic
    from planc.ir.plan import Plan
    from planc.ir.saved_model import SavedModel
    from planc.ir.sharding import Sharded
    from planc.ir.target import Target
    from planc.ir.version import Version


class CommonBackend:
    """Default implementations of methods of `planc.ir.backend.Backend`; targets may override them."""

    name: str
    target: Target
    lockstep: bool = False
    launchers: tuple[str, ...] = ()
    framework: Framework

    def __init__(self, version: Version | None = None) -> None:
        self.version = version or self.framework.pinned

    @property
    def versions(self) -> tuple[Version, ...]:
        """The framework versions that `emit` supports, the oldest first."""
        return self.framework.versions

    def written_for(self, version: Version) -> Self:
        """Return this backend with an `emit` for `version` of the framework, one of `versions`."""
        assert version in self.versions, f"{self.name} writes no programs for {version}"
        return type(self)(version)

    def nearest_installed(self) -> Version:
        """Return the version in `versions` nearest to the installed framework; the pinned one if none is installed."""
        return self.framework.nearest_installed()

    def notes(self, sharded: Sharded) -> list[Diagnostic]:
        """Return no notes: the program of `sharded` implements each sentence."""
        return []

    def missing_module(self, plan: Plan) -> list[Diagnostic]:
        """Return E0901 if the target has no bundled module for the model of `plan`; else []."""
        from planc.backends.common.bundled import not_bundled

        return not_bundled(plan, self.target)

    def model_of(self, source: Any, example: Any = None, name: str = "") -> SavedModel:
        """Raise TypeError for any `source`, `example` and `name`: op graphs are traced from torch modules only."""
        raise TypeError(f"the {self.name} target reads no modules; the cuda target does")

    def launch_file(self, plan: Plan, kind: str, full: bool = False) -> str:
        """Raise AssertionError: this backend has no launchers, so it writes no launch file of `kind` for `plan`."""
        raise AssertionError(f"{kind} is none of the launchers of {self.name}")
