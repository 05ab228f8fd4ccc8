"""Evaluates the integer arithmetic of shell scripts, `$((...))` and `((...))`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable

_TOKENS = re.compile(r"\s*(?:(\d+)|\$?\{?([A-Za-z_]\w*)\}?|(<=|>=|==|!=|&&|\|\||[-+*/%()<>!]))")
_MOST = 10**15
_DEEPEST = 40
_LEVELS: tuple[dict[str, Callable[[int, int], int]], ...] = (
    {"||": lambda a, b: int(bool(a) or bool(b))},
    {"&&": lambda a, b: int(bool(a) and bool(b))},
    {"==": operator.eq, "!=": operator.ne},
    {"<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge},
    {"+": operator.add, "-": operator.sub},
    {"*": operator.mul, "/": lambda a, b: _divided(a, b), "%": lambda a, b: a - b * _divided(a, b)},
)
"""Operators, lowest precedence first."""


def evaluate(text: str, value_of: Callable[[str], str | None] = lambda name: None) -> int | None:
    """Returns the value of the expression `text`: integers, names (`value_of` returns their values), `+ - * / %`,
    comparisons, `&& || !` and brackets. None if it is no such expression, or a number is too large.

    >>> evaluate("8 * (4 + 2)"), evaluate("1 / 0"), evaluate("N / 2", {"N": "8"}.get)
    (48, None, 4)
    """
    tokens: list[str] = []
    at = 0
    text = text.strip()
    while at < len(text):
        found = _TOKENS.match(text, at)
        named = value_of(found[2]) if found and found[2] else None
        if found is None or (found[2] and (named is None or not re.fullmatch(r"-?\d{1,15}", named))):
            return None
        tokens += [f"{named}"] if found[2] else [found[0].strip()]
        at = found.end()
    try:
        value, rest = _binary(tokens, 0, 0, 0)
    except (IndexError, ValueError, ZeroDivisionError):
        return None
    return value if rest == len(tokens) and abs(value) <= _MOST else None


def _divided(a: int, b: int) -> int:
    """Returns `a / b`, truncated towards 0."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _binary(tokens: list[str], at: int, level: int, depth: int) -> tuple[int, int]:
    if level == len(_LEVELS):
        return _atom(tokens, at, depth)
    value, at = _binary(tokens, at, level + 1, depth)
    while at < len(tokens) and tokens[at] in _LEVELS[level]:
        apply = _LEVELS[level][tokens[at]]
        other, at = _binary(tokens, at + 1, level + 1, depth)
        value = int(apply(value, other))
        if abs(value) > _MOST:
            raise ValueError
    return value, at


def _atom(tokens: list[str], at: int, depth: int) -> tuple[int, int]:
    if depth > _DEEPEST:
        raise ValueError
    if tokens[at] in ("-", "+", "!"):
        value, after = _atom(tokens, at + 1, depth + 1)
        return {"-": -value, "+": value, "!": int(not value)}[tokens[at]], after
    if tokens[at] == "(":
        value, at = _binary(tokens, at + 1, 0, depth + 1)
        if tokens[at] != ")":
            raise ValueError
        return value, at + 1
    return int(tokens[at]), at + 1
