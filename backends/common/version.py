"""Versions of a framework: which one a program is written for, and what differs between those that programs run on.

A known difference is a file of `backends/<target>/versions/`. It decides what is emitted for `planc lower --torch
2.11`, and on which versions an emitted program refuses to run, with the reason.
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
    """Something that a framework does in one way before a version, and in another from it on.

    `since` is the first version of the new way, `what` says what changed, `reference` where its makers say so, and
    `handled` what planc does about it. `shown_by` names the test that shows it.
    """

    since: Version
    what: str
    reference: str
    handled: str
    shown_by: str
    concerns: Callable[[Sharded], bool] = lambda sharded: False
    """True for plans whose program is written in another way since that version."""
    fails_before: str = ""
    """Why a program written for the new way fails on older versions, as a message's end; empty: it runs there."""
    fails_since: str = ""
    """Why a program written for the old way fails on newer versions; empty: it runs there."""
    refused: str = ""
    """Why no program is written for older versions, as a refusal's end; empty: one is."""

    def is_in(self, version: Version) -> bool:
        """True for a `version` that does it in the new way."""
        return version >= self.since


@dataclass(frozen=True)
class Framework:
    """A package that emitted programs import: `module.__version__` tells its version.

    `pinned` is the version that programs are written for where nobody asks for another, `versions` are those that they
    can be written for, `tried` those on which the tests run them; both in order, without gaps.
    """

    name: str
    module: str
    pinned: Version
    versions: tuple[Version, ...]
    tried: tuple[Version, ...]
    differences: tuple[Difference, ...] = ()
    too_old: str = ""
    """Why programs refuse to run on a version before the first, as a message's end; empty: they only warn."""

    def nearest_installed(self) -> Version:
        """That of `versions` which is nearest to the package installed here; `pinned` where there is none."""
        from importlib import metadata  # takes a tenth of the time of a check

        try:
            found = version_of(metadata.version(self.name))
        except metadata.PackageNotFoundError:
            return self.pinned
        return self.nearest(found) if found else self.pinned

    def nearest(self, version: Version) -> Version:
        """The newest of `versions` that is not newer than `version`; the oldest of them where all are newer."""
        return max((v for v in self.versions if v <= version), default=self.versions[0])

    def refusals(self, sharded: Sharded, version: Version) -> list[Diagnostic]:
        """E0901 for each thing in the plan of `sharded` that only programs for versions after `version` can do."""
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
        """The lines of a program for `version` that look at the version which runs it: where something that the plan in
        `sharded` needs is known to fail, the program stops; a version that it was never tried on is warned of."""
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
        """(versions, why) that a program for `version` does not run on."""
        if self.too_old:
            yield f"< {self.versions[0]}", self.too_old
        for difference in self.differences:
            new = difference.is_in(version)
            if (why := difference.fails_before if new else difference.fails_since) and difference.concerns(sharded):
                advice = "" if difference.refused else f": lower for it (--{self.name})"
                yield f"{'<' if new else '>='} {difference.since}", why + advice
