"""Applying the edits of a fix to a text."""

from __future__ import annotations

from collections.abc import Iterable

from planc.diag.diagnostic import Edit


def apply_edits(text: str, edits: Iterable[Edit]) -> str:
    """Return `text` after the `edits`. The spans of all edits refer to `text` before any edit.

    Edits must not overlap. This is not checked.
    """
    lines = text.split("\n")
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line) + 1)

    def offset(line: int, column: int) -> int:
        return min(starts[min(line, len(starts)) - 1] + column - 1, len(text))

    ordered = sorted(edits, key=lambda e: (e.span.line, e.span.column), reverse=True)
    for edit in ordered:
        start = offset(edit.span.line, edit.span.column)
        end = offset(edit.span.end_line, edit.span.end_column)
        new = edit.text
        if start == len(text) and not text.endswith("\n") and edit.span.line > len(lines):
            new = "\n" + new
        text = text[:start] + new + text[end:]
    return text
