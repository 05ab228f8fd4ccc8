"""Diagnostics for other programs: as SARIF 2.1.0, GitHub's workflow commands, or one line each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from planc.diag.diagnostic import Diagnostic, Fix
from planc.diag.quoting import log_line, printable, sarif_text, uri_path, workflow_message, workflow_property
from planc.diag.registry import Rule
from planc.diag.span import Span

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def sarif(diagnostics: Iterable[Diagnostic], rules: Mapping[str, Rule], version: str) -> dict[str, Any]:
    """Return the diagnostics as a SARIF 2.1.0 log with one run. Columns count code points.

    Args:
        diagnostics: the findings, in the order of the results.
        rules: every rule by its code; those of the codes found are described in the log.
        version: planc's version.
    """
    found = list(diagnostics)
    used = [rules[code] for code in sorted({d.code for d in found}) if code in rules]
    driver = {
        "name": "planc",
        "version": version,
        "rules": [
            {"id": r.code, "shortDescription": {"text": r.page.title}, "fullDescription": {"text": r.page.why}}
            for r in used
        ],
    }
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": [_result(d) for d in found],
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _result(d: Diagnostic) -> dict[str, Any]:
    place = {"physicalLocation": {"artifactLocation": _file(d.span), "region": _region(d.span)}}
    text = f"{d.message}. {d.help}".rstrip(". ")
    found = {"ruleId": d.code, "level": d.severity, "message": {"text": sarif_text(text)}, "locations": [place]}
    return {**found, "fixes": [_fix(d.fix)]} if d.fix is not None else found


def _fix(fix: Fix) -> dict[str, Any]:
    """Return `fix` as a SARIF object (2.1.0, section 3.55): for each file, the text ranges to replace."""
    files = dict.fromkeys(edit.span.file for edit in fix.edits)
    changes = [
        {
            "artifactLocation": _file(next(e.span for e in fix.edits if e.span.file == file)),
            "replacements": [
                {"deletedRegion": _region(e.span), "insertedContent": {"text": e.text}}
                for e in fix.edits
                if e.span.file == file
            ],
        }
        for file in files
    ]
    return {"description": {"text": fix.title}, "artifactChanges": changes, "properties": {"safe": fix.safe}}


def _file(span: Span) -> dict[str, Any]:
    return {"uri": uri_path(span.file)}


def _region(span: Span) -> dict[str, int]:
    return {
        "startLine": span.line,
        "startColumn": span.column,
        "endLine": span.end_line,
        "endColumn": span.end_column,
    }


def github(diagnostics: Iterable[Diagnostic]) -> str:
    """Return `diagnostics` as GitHub's workflow commands, one line each."""
    return "\n".join(
        f"::{'notice' if d.severity == 'note' else d.severity} file={workflow_property(d.span.file)},"
        f"line={d.span.line},col={d.span.column},title={d.code}::{workflow_message(d.message)}"
        for d in diagnostics
    )


def concise(diagnostics: Iterable[Diagnostic]) -> str:
    """Return a line for each of `diagnostics`, for problem matchers: `FILE:LINE:COLUMN: error[E0112]: MESSAGE`."""
    return "\n".join(
        log_line(printable(f"{d.span.file}:{d.span.line}:{d.span.column}: {d.severity}[{d.code}]: {d.message}"))
        for d in diagnostics
    )
