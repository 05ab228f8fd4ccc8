"""Replaces old spellings in a plan, layout or hardware file by current ones, for `planc fmt`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from planc.syntax.old_words import may_hold_old_spellings

if TYPE_CHECKING:
    from planc.diag.diagnostic import Diagnostic, Edit

MOST_PASSES = 3
"""Rewriting one old spelling may produce another."""


def modernize(path: Path, text: str) -> str:
    """Return the plan, layout or hardware file `text` with current spellings. `path` is its file, since some spellings
    depend on imported files. Sentences with mistakes are not changed."""
    if not may_hold_old_spellings(text):
        return text
    from planc.diag.edits import apply_edits

    for _ in range(MOST_PASSES):
        edits = _edits(path, text)
        if not edits:
            break
        text = apply_edits(text, edits)
    return text


def _edits(path: Path, text: str) -> list[Edit]:
    from planc.syntax.old_spellings import CODE

    found = [d for d in _found(path, text) if d.code == CODE and d.fix]
    return list(dict.fromkeys(e for d in found if d.fix for e in d.fix.edits if e.span.file == path.name))


def _found(path: Path, text: str) -> list[Diagnostic]:
    from planc.ir.target import TARGETS
    from planc.language.build import build_file
    from planc.language.read_part import read_part
    from planc.syntax import parse_text

    file = parse_text(text, path.name)
    if file.header is None:
        return list(file.diagnostics)
    if file.header.verb != "plan":
        return read_part(file).diagnostics
    unsaved = {path.resolve(): text}
    said = [target for target in TARGETS if f"on {target}" in text]  # sentences that only these targets read
    return [d for target in ("", *said) for d in build_file(path, {}, target, unsaved).diagnostics]
