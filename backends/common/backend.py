"""The part of a backend that is the same for every target."""

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
    """Methods of `planc.ir.backend.Backend` that are the same for every target that does not define its own."""

    name: str
    target: Target
    lockstep: bool = False
    launchers: tuple[str, ...] = ()
    framework: Framework

    def __init__(self, version: Version | None = None) -> None:
        self.version = version or self.framework.pinned

    @property
    def versions(self) -> tuple[Version, ...]:
        """The versions of the framework that `emit` can write for, the oldest first."""
        return self.framework.versions

    def written_for(self, version: Version) -> Self:
        """This backend, writing for a `version` of the framework: one of `versions`."""
        assert version in self.versions, f"{self.name} writes no programs for {version}"
        return type(self)(version)

    def nearest_installed(self) -> Version:
        """That of `versions` which is nearest to the framework installed here; the pinned one where there is none."""
        return self.framework.nearest_installed()

    def notes(self, sharded: Sharded) -> list[Diagnostic]:
        """[]: the program of `sharded` does what each sentence says."""
        return []

    def missing_module(self, plan: Plan) -> list[Diagnostic]:
        """E0901 when the target has no bundled module that computes the model of `plan`; else []."""
        from planc.backends.common.bundled import not_bundled

        return not_bundled(plan, self.target)

    def model_of(self, source: Any, example: Any = None, name: str = "") -> SavedModel:
        """Raises TypeError for any `source`, `example` and `name`: op graphs are read from modules of torch."""
        raise TypeError(f"the {self.name} target reads no modules; the cuda target does")

    def launch_file(self, plan: Plan, kind: str, full: bool = False) -> str:
        """Raises AssertionError: without launchers no `kind` of launch file is written for `plan`."""
        raise AssertionError(f"{kind} is none of the launchers of {self.name}")
