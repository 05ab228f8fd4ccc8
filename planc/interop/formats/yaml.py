"""Parses YAML and JSON with PyYAML's composer, which returns nodes with places and constructs no Python objects.

The standard library's parser, which gives no places, first checks that a text is JSON. The YAML composer then reads it:
apart from a few escapes, JSON is a subset of YAML.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any

import yaml

from planc.diag.quoting import printable
from planc.diag.span import Source, Span
from planc.files import parse_json
from planc.interop.document import MAX_DEPTH, MAX_FIELDS, Document, FieldValue, Format, Given, Scalar, UnreadableError

_FLOAT = re.compile(r"[-+]?(\d+(_\d+)*)?\.?\d*([eE][-+]?\d+)?")
_TAGS = re.compile(r"^%TAG", re.MULTILINE)
MOST_EVENTS = 5 * MAX_FIELDS
"""Maximum number of names, values and ends of lists in a text."""
_INT = re.compile(r"[-+]?\d+(_\d+)*")
_WORDS: dict[str, Scalar] = {
    **dict.fromkeys(("true", "True", "TRUE", "yes", "Yes", "on", "On"), True),
    **dict.fromkeys(("false", "False", "FALSE", "no", "No", "off", "Off"), False),
    **dict.fromkeys(("null", "Null", "NULL", "~", ""), None),
}


def read_yaml(source: Source, format: Format = "yaml") -> Document:
    """Returns the fields of a YAML or JSON text, `source`. Raises UnreadableError for invalid text, for several
    documents, for recursive aliases, or for more than MAX_FIELDS values."""
    beyond: ValueError | None = None
    if format == "json":
        try:
            parse_json(source.text, finite=False)
        except json.JSONDecodeError as error:
            raise UnreadableError(f"it is not JSON: {error}", _span_of(source, error.lineno, error.colno)) from None
        except ValueError as error:  # for which the nodes may have a place
            beyond = error
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _bounded(source, loader)
        root = yaml.compose(source.text, Loader=loader)
    except UnreadableError:
        raise
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = _span(source, mark, mark) if mark else Span(source.file, 1, 1, 1, 1)
        raise UnreadableError(f"it is not YAML: {error.problem or error.context}", where) from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise UnreadableError(f"it is not YAML: {error}", Span(source.file, 1, 1, 1, 1)) from None
    fields: dict[str, Given] = {}
    if isinstance(root, yaml.MappingNode):
        for name, given in _Reader(source).fields(root, "", 0):
            fields[name] = given
    elif root is not None:
        raise UnreadableError("it is no mapping of names to values", _span(source, root.start_mark, root.end_mark))
    if beyond is not None:
        raise UnreadableError(str(beyond), _span_of(source, 1, 1))
    return Document(source.file, format, fields, source)


def _bounded(source: Source, loader: Any) -> None:
    """Raises UnreadableError for text that is nested too deep, because libyaml's composer would crash the process."""
    depth = 0
    if _TAGS.search(source.text):
        raise UnreadableError("directives of tags, which no configuration needs", _span_of(source, 1, 1))
    for count, event in enumerate(yaml.parse(source.text, Loader=loader)):
        if count > MOST_EVENTS:
            raise UnreadableError(f"more than {MAX_FIELDS:,} values", _span_of(source, 1, 1))
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH + 1:
                mark: Any = event.start_mark
                raise UnreadableError(f"nested more than {MAX_DEPTH} levels deep", _span(source, mark, mark))
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


class _Reader:
    """Reads the nodes of a YAML text. A node that aliases repeat counts at each visit towards MAX_FIELDS."""

    def __init__(self, source: Source) -> None:
        self._source, self._visits = source, 0

    def fields(self, node: yaml.MappingNode, prefix: str, depth: int) -> Iterator[tuple[str, Given]]:
        self._count(node, depth)
        seen: set[str] = set()
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag.endswith(":merge"):
                raise UnreadableError("a key that is no plain word", self._place(key))
            if key.value in seen:
                raise UnreadableError(f"`{printable(key.value)[:60]}` stands twice", self._place(key))
            seen.add(key.value)
            name = f"{prefix}{key.value}"
            if isinstance(value, yaml.MappingNode) and value.value:
                yield from self.fields(value, f"{name}.", depth + 1)
            else:
                place = self._place(key) if isinstance(value, yaml.MappingNode) else self._place(value)
                yield name, Given(self._value(value, depth + 1), place)

    def _value(self, node: yaml.Node, depth: int) -> FieldValue:
        self._count(node, depth)
        if isinstance(node, yaml.ScalarNode):
            return _scalar(node)
        if isinstance(node, yaml.SequenceNode):
            return tuple(self._value(item, depth + 1) for item in node.value)
        pairs = (part for key, value in node.value for part in (key, value))  # a mapping inside a list
        return tuple(self._value(part, depth + 1) for part in pairs)

    def _count(self, node: yaml.Node, depth: int) -> None:
        self._visits += 1
        if self._visits > MAX_FIELDS:
            raise UnreadableError(f"more than {MAX_FIELDS:,} values, aliases counted", self._place(node))
        if depth > MAX_DEPTH:
            raise UnreadableError(f"nested more than {MAX_DEPTH} levels deep", self._place(node))

    def _place(self, node: yaml.Node) -> Span:
        return _span(self._source, node.start_mark, node.end_mark)


def _scalar(node: yaml.ScalarNode) -> Scalar:
    """Returns the value of a plain or quoted scalar by YAML 1.2's core rules, in which `1e-4` is a number."""
    text = str(node.value)
    if node.style not in (None, "") or node.tag.startswith("!"):
        return text
    return _WORDS[text] if text in _WORDS else _number(text, text)


def _number(text: str, otherwise: Scalar) -> Scalar:
    if len(text) > 40:
        return otherwise
    if _INT.fullmatch(text):
        return int(text)
    if any(c.isdigit() for c in text) and _FLOAT.fullmatch(text):
        value = float(text)
        return value if math.isfinite(value) else otherwise
    return otherwise


def _span(source: Source, start: yaml.Mark, end: yaml.Mark) -> Span:
    """Converts YAML marks, which count from 0, to a span. A text of several lines is marked only on its first line."""
    line, column = start.line + 1, start.column + 1
    last = end.column + 1 if end.line == start.line else len(source.line(line)) + 1
    return Span(source.file, line, column, line, max(last, column))


def _span_of(source: Source, line: int, column: int) -> Span:
    return Span(source.file, line, column, line, column)
