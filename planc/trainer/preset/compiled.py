"""The compiled plan inside a preset: how it is written so that people can review it, and how it is read back."""

from __future__ import annotations

import hashlib
import json
from typing import Any

WIDTH = 110
"""Columns up to which a JSON object or list stays on one line."""
LONGEST_LINE = 200
"""No line of a preset that `planc embed` writes is longer."""


def checksum(data: dict[str, Any]) -> str:
    """SHA-256 of `data`, a compiled plan, in canonical form (one line, sorted keys): the layout of the text does not
    count."""
    return hashlib.sha256(json.dumps(data, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def to_text(data: dict[str, Any]) -> str:
    """`data`, a compiled plan, as indented JSON with sorted keys; a value that fits on a line stays on it.

    Every `'` is escaped, so the text may stand between the quotes of a TOML literal string.
    """
    return "\n".join(_lines("", data, "", "")).replace("'", "\\u0027") + "\n"


def from_text(text: str) -> dict[str, Any]:
    """Parse the compiled plan in `text`. Raises ValueError unless it is one JSON object without repeated keys."""
    try:
        data = json.loads(text, object_pairs_hook=_object, parse_constant=_no_number)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(data, dict):
        raise ValueError("it is not a JSON object")
    return data


def toml_string(text: str) -> str:
    """`text` as a multi-line TOML string: literal, or with lines folded where one would be too long."""
    lines = text.split("\n")
    if max(map(len, lines)) <= LONGEST_LINE and "'''" not in text:
        return f"'''\n{text}'''"
    return '"""\n' + "\n".join(map(_toml_lines, lines)) + '"""'


def _lines(head: str, value: Any, tail: str, indent: str) -> list[str]:
    """The lines of `head value tail`."""
    whole = indent + head + json.dumps(value, sort_keys=True) + tail
    width = LONGEST_LINE if _is_cause(value) else WIDTH
    if len(whole) <= width or not isinstance(value, dict | list) or not value:
        return [whole]
    inner = indent + " "
    if isinstance(value, dict):
        parts = [(f"{json.dumps(key)}: ", value[key]) for key in sorted(value)]
    else:
        parts = [("", item) for item in value]
    commas = [","] * (len(parts) - 1) + [""]
    body = [line for (key, item), comma in zip(parts, commas, strict=True) for line in _lines(key, item, comma, inner)]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return [f"{indent}{head}{opening}", *body, f"{indent}{closing}{tail}"]


def _is_cause(value: Any) -> bool:
    """True for a sentence with its place: it stays on one line, so that a moved sentence changes one line."""
    return isinstance(value, dict) and ("span" in value or "end_column" in value)


def _toml_lines(line: str) -> str:
    """A line of a basic TOML string, with `\\` at the end of each piece but the last."""
    units = [{"\\": "\\\\", '"': '\\"'}.get(c, c) for c in line]
    pieces, begin, left = list[str](), 0, sum(map(len, units))
    while left >= LONGEST_LINE:
        cut = end = begin + _most_units(units, begin)
        while units[cut] == " " and cut - begin > (end - begin) // 2:  # a folded line begins behind its spaces
            cut -= 1
        if units[cut] == " ":
            cut, units[end] = end, "\\u0020"
            left += len(units[end]) - 1
        pieces.append("".join(units[begin:cut]))
        begin, left = cut, left - len(pieces[-1])
    return "\\\n".join([*pieces, "".join(units[begin:])])


def _most_units(units: list[str], begin: int) -> int:
    """Number of `units` from `begin` on that fit on a line beside the `\\` at its end."""
    room = LONGEST_LINE - 1
    for number, unit in enumerate(units[begin : begin + LONGEST_LINE]):
        room -= len(unit)
        if room < 0:
            return number
    return len(units) - begin


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object has the same key twice")
    return found


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is not a number")
