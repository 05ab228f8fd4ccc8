"""Parses TOML with the standard library; finds places from the headers and keys of the text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from planc.diag.span import Source, Span
from planc.files import parse_toml
from planc.interop.document import MAX_DEPTH, MAX_FIELDS, Document, FieldValue, Given, UnreadableError

_HEADER = re.compile(r"\s*\[\[?([^\]]+)\]")
_KEY = re.compile(r"\s*([\w\-.\"']+)\s*=\s*")
_AT = re.compile(r"at line (\d+), column (\d+)")


def read_toml(source: Source) -> Document:
    """Returns the fields of the TOML text `source`, by dotted path (`table.key`). Raises UnreadableError."""
    try:
        value = parse_toml(source.text)
    except ValueError as error:
        found = _AT.search(str(error))
        line, column = (int(found[1]), int(found[2])) if found else (1, 1)
        raise UnreadableError(f"it is not TOML: {error}", Span(source.file, line, column, line, column)) from None
    places = _places(source)
    fields: dict[str, Given] = {}
    for name, item in _flattened(value, "", 0, source):
        fields[name] = Given(item, places.get(name, Span(source.file, 1, 1, 1, 1)))
        if len(fields) > MAX_FIELDS:
            raise UnreadableError(f"more than {MAX_FIELDS:,} fields", Span(source.file, 1, 1, 1, 1))
    return Document(source.file, "toml", fields, source)


def _flattened(table: Mapping[str, Any], prefix: str, depth: int, source: Source) -> Iterator[tuple[str, FieldValue]]:
    if depth > MAX_DEPTH:
        raise UnreadableError(f"nested more than {MAX_DEPTH} levels deep", Span(source.file, 1, 1, 1, 1))
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flattened(value, f"{prefix}{key}.", depth + 1, source)
        else:
            yield f"{prefix}{key}", _plain(value)


def _plain(value: Any) -> FieldValue:
    if isinstance(value, list):
        return tuple(_plain(v) for v in value)
    if isinstance(value, dict):
        return tuple(_plain(part) for pair in value.items() for part in pair)
    return value if isinstance(value, str | int | float | bool) else str(value)


def _places(source: Source) -> dict[str, Span]:
    """Returns the place of each value whose key begins a line, by dotted path."""
    found: dict[str, Span] = {}
    table = ""
    for number, line in enumerate(source.lines, 1):
        if header := _HEADER.match(line):
            table = _unquoted(header[1]) + "."
        elif key := _KEY.match(line):
            end = len(line.rstrip())
            found.setdefault(table + _unquoted(key[1]), Span(source.file, number, key.end() + 1, number, end + 1))
    return found


def _unquoted(path: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in path.split("."))
