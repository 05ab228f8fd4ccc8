"""Diagnostics about a user's file, each with a code, a position, the arithmetic, and an edit that fixes it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any, Literal

from planc.diag.fast_dataclass import dataclass
from planc.diag.span import Span

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True)
class Edit:
    """A replacement of the text in `span` by `text`."""

    span: Span
    text: str


@dataclass(frozen=True, slots=True)
class Fix:
    """A mechanical fix: applying `edits` removes the diagnostic.

    A `safe` fix has no alternative and keeps what the plan means: it corrects a typo that only one legal word
    resembles, adds a bracket, or removes a sentence without effect. `planc check --fix` applies safe fixes only.
    """

    title: str
    edits: tuple[Edit, ...]
    safe: bool = False


@dataclass(frozen=True, slots=True)
class Related:
    """Another location that is part of the mistake, with a message about it."""

    span: Span
    message: str


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One error, warning or note. `label` is the short text printed under the marked text."""

    code: str
    message: str
    span: Span
    label: str = ""
    help: str = ""
    related: tuple[Related, ...] = ()
    fix: Fix | None = None

    @property
    def severity(self) -> Severity:
        """The severity, by the first letter of the code: E error, W warning, N note."""
        kinds: dict[str, Severity] = {"E": "error", "W": "warning", "N": "note"}
        return kinds[self.code[0]]

    def to_json(self) -> dict[str, Any]:
        """Return the diagnostic as a JSON object of the format `planc.report/1`."""
        return {
            "code": self.code,
            "severity": self.severity,
            "message": self.message,
            **_span_json(self.span),
            "help": self.help,
            "related": [{**_span_json(r.span), "message": r.message} for r in self.related],
            "fix": None
            if self.fix is None
            else {
                "title": self.fix.title,
                "safe": self.fix.safe,
                "edits": [{**_span_json(e.span), "text": e.text} for e in self.fix.edits],
            },
        }


def _span_json(span: Span) -> dict[str, Any]:
    return {
        "file": span.file,
        "line": span.line,
        "column": span.column,
        "end_line": span.end_line,
        "end_column": span.end_column,
    }


def has_errors(diagnostics: tuple[Diagnostic, ...] | list[Diagnostic]) -> bool:
    """True if any of `diagnostics` is an error; the exit status is then 1."""
    return any(d.severity == "error" for d in diagnostics)


MAX_OF_ONE_CODE = 100
"""Findings of one code that are kept."""
MAX_MESSAGE = 1_000
"""Characters of a message that are kept: a message may quote a whole sentence."""


def bounded(diagnostics: tuple[Diagnostic, ...]) -> tuple[Diagnostic, ...]:
    """Return at most 100 of `diagnostics` of each code, in their order. Texts are cut after 1,000 characters.

    If a code has more than 100, an N0114 at the span of the last one says how many are left out.
    """
    counts = Counter(d.code for d in diagnostics)
    kept: list[Diagnostic] = []
    seen: Counter[str] = Counter()
    last = {d.code: d for d in diagnostics}
    for d in diagnostics:
        seen[d.code] += 1
        if seen[d.code] <= MAX_OF_ONE_CODE:
            kept.append(_shortened(d))
        elif d is last[d.code]:
            more = counts[d.code] - MAX_OF_ONE_CODE
            kept.append(Diagnostic("N0114", f"{more:,} more {d.code} are not shown, the last one here", d.span))
    return tuple(kept)


def _shortened(d: Diagnostic) -> Diagnostic:
    if max(len(d.message), len(d.label), len(d.help), len(d.related)) <= MAX_MESSAGE:
        return d
    related = d.related[:MAX_OF_ONE_CODE]
    return replace(d, message=_cut(d.message), label=_cut(d.label), help=_cut(d.help), related=related)


def _cut(text: str) -> str:
    return text if len(text) <= MAX_MESSAGE else f"{text[: MAX_MESSAGE - 3]}..."


def in_order(diagnostics: list[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Return `diagnostics` sorted by span, then code, then message, without duplicates."""
    unique = dict.fromkeys(diagnostics)
    return tuple(sorted(unique, key=lambda d: (d.span, d.code, d.message)))
