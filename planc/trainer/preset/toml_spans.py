"""Finds the spans of keys in a TOML file, and reports pydantic's errors as diagnostics at these spans.

The standard library's parser gives no positions, so the lines are scanned a second time.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from planc.diag import Diagnostic, Span
from planc.ir.frozen import Frozen
from planc.syntax.suggest import nearest, spelling_fix

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

UNKNOWN_KEY, WRONG_VALUE = "E1002", "E1003"

_HEADER = re.compile(r"\s*\[\s*([\w.-]+)\s*\]")
_KEY = re.compile(r"""\s*(["']?)([^"'=\s]+)\1\s*=""")

_MULTILINE = re.compile(r'=\s*(\'{3}|"{3})')

Place = tuple[str, ...]
"""The path of keys: ("train", "lr")."""


def places(file: str, text: str) -> dict[Place, Span]:
    """Return the span of each table name and of each key on a line of its own in `text`, the content of `file`."""
    found: dict[Place, Span] = {}
    table: Place = ()
    closing = ""
    for number, line in enumerate(text.split("\n"), 1):
        if closing:  # inside a string of several lines
            closing = "" if closing in line else closing
            continue
        if opened := _MULTILINE.search(line):
            closing = "" if line.count(opened[1]) > 1 else opened[1]
        if header := _HEADER.match(line):
            table = tuple(header[1].split("."))
            found.setdefault(table, _span(file, number, header.start(1), header.end(1)))
        elif key := _KEY.match(line):
            found.setdefault((*table, *key[2].split(".")), _span(file, number, key.start(2), key.end(2)))
    return found


def span_of(place: Place, found: dict[Place, Span], file: str) -> Span:
    """Return the span of the key `place` in `found`; if it is missing, of the nearest table around it, else of the
    start of `file`."""
    for length in range(len(place), 0, -1):
        if place[:length] in found:
            return found[place[:length]]
    return Span(file, 1, 1, 1, 1)


def diagnose(errors: list[ErrorDetails], model: type[Frozen], file: str, text: str) -> list[Diagnostic]:
    """Convert pydantic's `errors` about `model` to diagnostics with spans in `text`, the content of `file`."""
    found = places(file, text)
    return [_diagnostic(error, model, found, file) for error in errors]


def _diagnostic(error: ErrorDetails, model: type[Frozen], found: dict[Place, Span], file: str) -> Diagnostic:
    place = tuple(str(part) for part in error["loc"])
    span = span_of(place, found, file)
    name = " ".join([f"[{place[0]}]", *place[1:]]) if place else "the preset"
    if error["type"] == "extra_forbidden":
        return _unknown(place, model, span)
    if error["type"] == "missing":
        return Diagnostic(WRONG_VALUE, f"{name} is missing", span, help=f"add `{place[-1]} = ...`")
    message = error["msg"].removeprefix("Value error, ")
    return Diagnostic(WRONG_VALUE, f"{name}: {message[0].lower()}{message[1:]}", span)


def _unknown(place: Place, model: type[Frozen], span: Span) -> Diagnostic:
    """Return the error about an unknown key, with the nearest valid key as a fix."""
    *tables, key = place
    legal = list(_model_at(model, tables).model_fields)
    where = f" in [{'.'.join(tables)}]" if tables else ""
    near = nearest(key, legal, most=1)
    fix = spelling_fix(span, key, legal)
    guess = f"did you mean `{near[0]}`? " if near else ""
    return Diagnostic(
        UNKNOWN_KEY, f"unknown key `{key}`{where}", span, help=f"{guess}legal: {', '.join(legal)}", fix=fix
    )


def _model_at(model: type[Frozen], tables: list[str]) -> type[Frozen]:
    for table in tables:
        inner: Any = model.model_fields[table].annotation
        model = inner
    return model


def _span(file: str, line: int, start: int, end: int) -> Span:
    """Return a span from 0-based offsets in one line."""
    return Span(file, line, start + 1, line, end + 1)
