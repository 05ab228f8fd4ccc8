"""`planc check --fix`: apply fixes of diagnostics to a plan file, show them as diffs, and list those not applied."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import unified_diff
from pathlib import Path

from planc.diag.diagnostic import Diagnostic, Edit, Fix
from planc.diag.edits import apply_edits
from planc.diag.fast_dataclass import dataclass
from planc.driver import Examined, examine
from planc.files import MAX_TEXT_BYTES, read_bounded, write_atomically
from planc.ir.target import Target

ROUNDS = 50
"""Limit on re-checks of a file: applying one fix may reveal the next finding."""
OWNED = ("batch", "cluster", "let", "model", "param")
"""Sentences whose values define the training itself; only their verb is corrected without `--unsafe`."""
BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Applied:
    """A diagnostic whose fix was applied, and the text of the file before and after."""

    finding: Diagnostic
    before: str
    after: str

    def diff(self) -> str:
        """Return the edit as a unified diff, without context."""
        file = self.finding.span.file
        before, after = (text.replace("\r\n", "\n").split("\n") for text in (self.before, self.after))
        return "\n".join(unified_diff(before, after, file, file, n=0, lineterm=""))


@dataclass(frozen=True)
class Fixed:
    """The result for one file: the fixes applied, in order, and the diagnostics (`left`) whose fixes were not."""

    applied: tuple[Applied, ...]
    left: tuple[Diagnostic, ...]

    def lines(self) -> Iterator[str]:
        """Yield each applied fix as a diff, then each fix that was not applied."""
        for one in self.applied:
            assert one.finding.fix is not None
            yield f"fixed {one.finding.code} {one.finding.span.where()}: {one.finding.fix.title}"
            yield one.diff()
        for d in self.left:
            assert d.fix is not None
            yield f"not applied {d.code} {d.span.where()}: {d.fix.title} (--unsafe-fixes applies it)"


def fix_file(file: str, given: dict[str, int], target: Target | None, *, unsafe: bool = False) -> Fixed:
    """Apply the safe fixes of diagnostics of the plan `file`, or with `unsafe` all fixes, and write the file once.

    `given` are values of `let` numbers. Fixes of notes, and fixes that edit other files, are not applied.
    """
    path = Path(file)
    applied: list[Applied] = []
    checked = examine(file, set=given, target=target)
    first = text = text_of(checked, path)
    for _ in range(ROUNDS):
        done = {one.finding.fix for one in applied}
        usable = [d for d in _offered(checked, file) if d.fix not in done and (unsafe or _is_safe(d.fix, text))]
        if not usable:
            break
        after = _edited(text, usable[0].fix)  # one at a time: it moves the spans of all later edits
        applied.append(Applied(usable[0], text, after))
        text = after
        checked = examine(file, set=given, target=target, unsaved={path.resolve(): text})
    if text != first:
        _write(path, text)
    return Fixed(tuple(applied), tuple(_offered(checked, file)))


def apply_fix(checked: Examined, file: str, fix: Fix) -> None:
    """Apply `fix` to `file`, whose checked text is in `checked`, and write the file. Raises OSError."""
    path = Path(file)
    _write(path, _edited(text_of(checked, path), fix))


def text_of(checked: Examined, path: Path) -> str:
    """Return the text of the file at `path` as read for `checked`, without byte-order mark; "" if it was not read."""
    source = checked.built.sources.get(path.name) if checked.built else None
    return source.text if source is not None else ""


def _offered(checked: Examined, file: str) -> Iterator[Diagnostic]:
    """Yield the errors and warnings that have a fix in `file` alone."""
    for d in checked.report.diagnostics:
        if d.severity != "note" and d.fix is not None and all(e.span.file == file for e in d.fix.edits):
            yield d


def _is_safe(fix: Fix | None, text: str) -> bool:
    return fix is not None and fix.safe and not any(_changes_owned_sentence(edit, text) for edit in fix.edits)


def _changes_owned_sentence(edit: Edit, text: str) -> bool:
    """True if `edit` changes more than the verb of a sentence in `OWNED`, or adds such a sentence."""
    line = text.split("\n")[edit.span.line - 1] if edit.span.line <= text.count("\n") + 1 else ""
    verb = re.match(r"\s*(?:on\s+\w+\s*:\s*)?(\w+)", line)
    inside = verb is not None and verb[1] in OWNED and edit.span.column > verb.start(1) + 1
    return inside or any(words.split()[:1] and words.split()[0] in OWNED for words in edit.text.split("\n")[1:])


def _edited(text: str, fix: Fix | None) -> str:
    """Return `text` with `fix` applied, in the line endings of `text`."""
    assert fix is not None
    windows = "\r\n" in text
    edits = [Edit(e.span, e.text.replace("\n", "\r\n")) for e in fix.edits] if windows else fix.edits
    return apply_edits(text, edits)


def _write(path: Path, text: str) -> None:
    """Write `text` to `path`. The byte-order mark, permissions and links of the file stay."""
    mark = BOM if read_bounded(path, MAX_TEXT_BYTES).startswith(BOM) else b""
    write_atomically(path, mark + text.encode())
