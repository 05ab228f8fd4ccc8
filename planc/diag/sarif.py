"""Diagnostics as SARIF 2.1.0, and as GitHub workflow annotations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from planc.diag.diagnostic import Diagnostic
from planc.diag.registry import Rule

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def sarif(diagnostics: Iterable[Diagnostic], rules: Mapping[str, Rule], version: str) -> dict[str, Any]:
    """One run with every finding; columns count code points."""
    found = list(diagnostics)
    used = [rules[code] for code in sorted({d.code for d in found}) if code in rules]
    driver = {
        "name": "planc",
        "version": version,
        "rules": [
            {"id": r.code, "shortDescription": {"text": r.title}, "fullDescription": {"text": r.why}} for r in used
        ],
    }
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": [_result(d) for d in found],
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _result(d: Diagnostic) -> dict[str, Any]:
    s = d.span
    region = {
        "startLine": s.line,
        "startColumn": s.column,
        "endLine": s.end_line,
        "endColumn": s.end_column,
    }
    place = {"physicalLocation": {"artifactLocation": {"uri": s.file}, "region": region}}
    text = f"{d.message}. {d.help}".rstrip(". ")
    return {"ruleId": d.code, "level": d.severity, "message": {"text": text}, "locations": [place]}


def github(diagnostics: Iterable[Diagnostic]) -> str:
    """GitHub's workflow commands, one a line."""
    return "\n".join(
        f"::{'notice' if d.severity == 'note' else d.severity} file={d.span.file},line={d.span.line},"
        f"col={d.span.column},title={d.code}::{d.message}"
        for d in diagnostics
    )
