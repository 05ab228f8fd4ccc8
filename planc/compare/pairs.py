"""Compare all plans of a repository in two versions, before and after a change."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from planc.compare.diff import Diff, diff
from planc.diag.diagnostic import Diagnostic
from planc.diag.fast_dataclass import dataclass
from planc.driver import Examined

Kind = Literal["same", "changed", "new", "gone", "mended", "broken", "wrong"]


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One plan in two versions of a repository. `before` or `after` is None if the file is missing in that version."""

    name: str
    """Its path within both versions, or its name on the command line."""
    before: Examined | None
    after: Examined | None
    found: Diff | None
    """Differences, if both can be costed."""

    @property
    def kind(self) -> Kind:
        """How the plan changed. `mended`: only the later version can be costed; `broken`: only the earlier one;
        `wrong`: neither, and their diagnostics differ."""
        if self.before is None or self.after is None:
            return "new" if self.before is None else "gone"
        if self.found is not None:
            quiet = not self.found.changes and not self.found.apart and not any(map(any, self.findings))
            return "same" if quiet else "changed"
        costed = (self.before.costed is not None, self.after.costed is not None)
        if costed == (False, False):
            return "wrong" if any(map(any, self.findings)) else "same"
        return "mended" if costed[1] else "broken"

    @property
    def findings(self) -> tuple[list[Diagnostic], list[Diagnostic]]:
        """The diagnostics that are new in the later version, and those that are gone. Lines are not compared, only code
        and message."""
        before, after = ([] if e is None else list(e.report.diagnostics) for e in (self.before, self.after))
        old, new = ({(d.code, d.message) for d in found} for found in (before, after))
        gone = [d for d in before if (d.code, d.message) not in new]
        return [d for d in after if (d.code, d.message) not in old], gone

    @property
    def sentences(self) -> list[str]:
        """The changed lines of the plan file, each with `+` or `-`. Imported files are not compared."""
        from difflib import unified_diff

        compared = unified_diff(_own_text(self.before), _own_text(self.after), n=0, lineterm="")
        return [line.rstrip() for line in list(compared)[2:] if line[0] in "+-"]


def _own_text(examined: Examined | None) -> list[str]:
    if examined is None or not examined.sources:
        return []
    return next(iter(examined.sources.values())).text.splitlines()


def pair(name: str, before: Examined | None, after: Examined | None, names: tuple[str, str]) -> Pair:
    """Compare two versions of the plan `name`. `names` are the names of the versions in the result."""
    found = None
    if before is not None and after is not None and before.costed is not None and after.costed is not None:
        found = diff(before.costed, after.costed, names=names)
    return Pair(name=name, before=before, after=after, found=found)


def pairs(
    folders: tuple[Path, Path], plans: Callable[[Path], Sequence[Path]], examine: Callable[[Path], Examined]
) -> Iterator[Pair]:
    """Compare all plans of two folders. Files with the same relative path are one plan.

    Args:
        folders: the earlier version and the later one.
        plans: returns the plans of a folder.
        examine: checks a plan and returns its report.
    """
    before, after = ({p.relative_to(folder).as_posix(): p for p in plans(folder)} for folder in folders)
    for name in sorted({**before, **after}):
        one, other = (examine(found[name]) if name in found else None for found in (before, after))
        yield pair(name, one, other, (name, name))
