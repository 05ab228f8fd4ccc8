"""Diagnostics in the form of the protocol: code, severity, help, related locations, a link to the manual, edits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lsprotocol.types import (
    CodeAction,
    CodeActionKind,
    CodeDescription,
    DiagnosticRelatedInformation,
    DiagnosticSeverity,
    Location,
    TextEdit,
    WorkspaceEdit,
)
from lsprotocol.types import Diagnostic as Shown

from planc.cache import cache_folder
from planc.checks import rules
from planc.diag.diagnostic import Diagnostic, Edit, Fix
from planc.diag.span import Span
from planc.editor.positions import Positions
from planc.files import MAX_TEXT_BYTES, read_bounded, write_atomically

SEVERITIES = {
    "error": DiagnosticSeverity.Error,
    "warning": DiagnosticSeverity.Warning,
    "note": DiagnosticSeverity.Information,
}

Place = Callable[[Span], Location]
"""Converts a span to a URI and a range of the client."""


def shown(finding: Diagnostic, place: Place) -> Shown:
    """Return `finding` as the client shows it; `place` converts a span to the client's location."""
    text = finding.message + (f"\nhelp: {finding.help}" if finding.help else "")
    related = [DiagnosticRelatedInformation(place(r.span), r.message) for r in finding.related]
    link = manual_page(finding.code)
    return Shown(
        range=place(finding.span).range,
        message=text,
        severity=SEVERITIES[finding.severity],
        code=finding.code,
        code_description=CodeDescription(link.as_uri()) if link else None,
        source="planc",
        related_information=related or None,
    )


def manual_page(code: str) -> Path | None:
    """Return the path of the manual page of `code`, written to a file; None if nothing can be written."""
    rule = rules().get(code)
    if rule is None:
        return None
    path = cache_folder() / "manual" / f"{code}.md"
    text = rule.manual + "\n"
    try:
        if not path.exists() or read_bounded(path, MAX_TEXT_BYTES) != text.encode():
            write_atomically(path, text)
        return path.resolve()
    except OSError:
        return None


def quick_fix(finding: Diagnostic, fix: Fix, place: Place, positions: Callable[[Span], Positions]) -> CodeAction:
    """Return the edits of `fix` as a code action of the client, for `finding`."""
    changes: dict[str, list[TextEdit]] = {}
    for edit in fix.edits:
        where = place(edit.span)
        changes.setdefault(where.uri, []).append(TextEdit(where.range, _new_text(edit, positions(edit.span))))
    return CodeAction(
        title=fix.title,
        kind=CodeActionKind.QuickFix,
        diagnostics=[shown(finding, place)],
        edit=WorkspaceEdit(changes=changes),
        is_preferred=True,
    )


def _new_text(edit: Edit, positions: Positions) -> str:
    """Return the text of `edit`, after a newline if it adds a line to a text whose last line has none."""
    text = positions.text
    beyond = edit.span.line > text.count("\n") + 1
    return f"\n{edit.text}" if beyond and text and not text.endswith("\n") else edit.text
