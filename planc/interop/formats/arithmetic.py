"""Sums and products of whole numbers, as shell scripts write them in `$((...))`."""

from __future__ import annotations

import re

_TOKENS = re.compile(r"\d+|[-+*/()]")
_MOST = 10**15


def evaluate(text: str) -> int | None:
    """The value of `text`: whole numbers, `+ - * /` and brackets; None where it is not such a sum, or is too large.

    >>> evaluate("8 * (4 + 2)"), evaluate("1 / 0")
    (48, None)
    """
    tokens = _TOKENS.findall(text)
    try:
        value, rest = _sum(tokens, 0)
    except (IndexError, ValueError, ZeroDivisionError):
        return None
    return value if rest == len(tokens) and abs(value) <= _MOST else None


def _sum(tokens: list[str], at: int) -> tuple[int, int]:
    value, at = _product(tokens, at)
    while at < len(tokens) and tokens[at] in "+-":
        other, after = _product(tokens, at + 1)
        value, at = (value + other if tokens[at] == "+" else value - other), after
    return value, at


def _product(tokens: list[str], at: int) -> tuple[int, int]:
    value, at = _atom(tokens, at)
    while at < len(tokens) and tokens[at] in "*/":
        other, after = _atom(tokens, at + 1)
        value, at = (value * other if tokens[at] == "*" else value // other), after
    return value, at


def _atom(tokens: list[str], at: int) -> tuple[int, int]:
    if tokens[at] == "(":
        value, at = _sum(tokens, at + 1)
        if tokens[at] != ")":
            raise ValueError
        return value, at + 1
    return int(tokens[at]), at + 1
