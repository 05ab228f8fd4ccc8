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
    from planc.ir.tensor_bytes import InFlight
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
        """Return []: the program of the plan in `sharded` implements every sentence as written."""
        return []

    def exceeds(self, sharded: Sharded, in_flight: InFlight, room_bytes: float) -> bool:
        """Return False: more than `room_bytes` is known only from `peak_memory` of `sharded` and its `in_flight`."""
        return False

    def missing_module(self, plan: Plan) -> list[Diagnostic]:
        """Return E0901 if `backends/<target>/models` has no module for the model of `plan`; else []."""
        from planc.backends.common.bundled import not_bundled

        return not_bundled(plan, self.target)

    def model_of(self, source: Any, example: Any = None, name: str = "") -> SavedModel:
        """Raise TypeError: only the cuda target traces an op graph from a module (`source`, `example`, `name`)."""
        raise TypeError(f"the {self.name} target reads no modules; the cuda target does")

    def launch_file(self, plan: Plan, kind: str, full: bool = False) -> str:
        """Raise AssertionError, whatever `kind` and `plan` are: this backend writes no launch files."""
        raise AssertionError(f"{kind} is none of the launchers of {self.name}")
