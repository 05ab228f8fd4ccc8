"""Framework versions: which version a program is emitted for, and the known differences between versions.

Each known difference is a file in `backends/<target>/versions/`. It determines the code emitted for `planc lower
--torch 2.11`, and the versions on which an emitted program refuses to run, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from textwrap import indent

from planc.backends.common.refusal import refused
from planc.backends.common.source_writer import INDENT, call, lines
from planc.diag.diagnostic import Diagnostic
from planc.diag.fast_dataclass import dataclass
from planc.ir.sharding import Sharded
from planc.ir.version import Version, dotted, version_of


@dataclass(frozen=True)
class Difference:
    """A change of a framework's behaviour in some version.

    `since` is the first version with the new behaviour, `what` describes the change, `reference` is the framework's own
    source for it, `handled` describes how planc handles it, and `shown_by` names the test that demonstrates it.
    """

    since: Version
    what: str
    reference: str
    handled: str
    shown_by: str
    concerns: Callable[[Sharded], bool] = lambda sharded: False
    """True for plans whose program differs from that version on."""
    fails_before: str = ""
    """End of the message why a program for the new behaviour fails on older versions; empty: it runs there."""
    fails_since: str = ""
    """End of the message why a program for the old behaviour fails on newer versions; empty: it runs there."""
    refused: str = ""
    """End of the message why no program is emitted for older versions; empty: one is emitted."""

    def is_in(self, version: Version) -> bool:
        """True if `version` has the new behaviour."""
        return version >= self.since


@dataclass(frozen=True)
class Framework:
    """A package that emitted programs import; `module.__version__` is its version.

    `pinned` is the default version for which programs are emitted, `versions` are the supported versions, and `tried`
    the versions on which the tests run programs; both are in order, without gaps.
    """

    name: str
    module: str
    pinned: Version
    versions: tuple[Version, ...]
    tried: tuple[Version, ...]
    differences: tuple[Difference, ...] = ()
    too_old: str = ""
    """End of the message why programs refuse to run on versions before the first; empty: they only warn."""

    def nearest_installed(self) -> Version:
        """Return the version in `versions` nearest to the installed package; `pinned` if it is not installed."""
        from importlib import metadata  # takes a tenth of the time of a check

        try:
            found = version_of(metadata.version(self.name))
        except metadata.PackageNotFoundError:
            return self.pinned
        return self.nearest(found) if found else self.pinned

    def nearest(self, version: Version) -> Version:
        """Return the newest of `versions` that is not newer than `version`; the oldest one if all are newer."""
        return max((v for v in self.versions if v <= version), default=self.versions[0])

    def refusals(self, sharded: Sharded, version: Version) -> list[Diagnostic]:
        """Return E0901 for each feature of the plan of `sharded` that needs a version newer than `version`."""
        return [
            refused(
                f"{self.name} {dotted(version)} runtime",
                sharded.plan.mesh.cause,
                d.refused,
                help=f"--{self.name} {dotted(d.since)}",
            )
            for d in self.differences
            if d.refused and not d.is_in(version) and d.concerns(sharded)
        ]

    def guard(self, sharded: Sharded, version: Version) -> str:
        """Return the lines of a program for `version` that check the installed version at run time.

        The program stops on an installed version that is known to fail for the plan in `sharded`, and warns on one that
        was never tested.
        """
        constant, found = self.name.upper(), f"{{{self.module}.__version__}}"
        written_for = f"compiled for {self.name} {dotted(version)}"
        first, last = self.tried[0], self.tried[-1]
        tried = f"{constant} != {first}" if first == last else f"not {first} <= {constant} <= {last}"
        if self.too_old:
            tried = f"{constant} > {last}"
        return lines(
            f'{constant} = tuple(int(number) for number in {self.module}.__version__.split(".")[:2])',
            *(
                f"if {constant} {condition}:\n"
                + indent(call("raise RuntimeError(", [f'f"{self.name} {found} {why}"'], depth=1), INDENT)
                for condition, why in self._refused(sharded, version)
            ),
            f"if {tried}:",
            f'    warnings.warn(f"{written_for} and never tried on {found}", stacklevel=2)',
        )

    def _refused(self, sharded: Sharded, version: Version) -> Iterator[tuple[str, str]]:
        """Yield each condition on the installed version (`< (2, 9)`) under which a program fails, and the reason."""
        if self.too_old:
            yield f"< {self.versions[0]}", self.too_old
        for difference in self.differences:
            new = difference.is_in(version)
            if (why := difference.fails_before if new else difference.fails_since) and difference.concerns(sharded):
                advice = "" if difference.refused else f": lower for it (--{self.name})"
                yield f"{'<' if new else '>='} {difference.since}", why + advice
