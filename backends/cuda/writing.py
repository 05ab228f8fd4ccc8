"""Writing Python that `ruff format` leaves as it is."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from planc.ir.base import Cause

WIDTH = 110
INDENT = "    "


def call(head: str, arguments: Sequence[str], tail: str = "", indent: int = 0) -> str:
    """`head(arguments)tail` on one line if it fits, else one argument a line."""
    brackets = {"(": ")", "{": "}", "[": "]"}
    opened = head if head[-1] in brackets else head + "("
    closing = brackets[opened[-1]]
    one = INDENT * indent + opened + ", ".join(arguments) + closing + tail
    if len(one) <= WIDTH and "\n" not in one:
        return one
    inner = "".join(f"{INDENT * (indent + 1)}{a},\n" for a in arguments)
    return f"{INDENT * indent}{opened}\n{inner}{INDENT * indent}{closing}{tail}"


def tuple_of(items: Sequence[str]) -> str:
    """A tuple display."""
    return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"


def comment(text: str, indent: int = 0) -> str:
    """Comment lines, wrapped to the width; empty for no text."""
    prefix = INDENT * indent + "# "
    return textwrap.fill(
        text, WIDTH, initial_indent=prefix, subsequent_indent=prefix + "  ", break_long_words=False
    )


def because(cause: Cause | None, said: str = "", indent: int = 0) -> str:
    """The comment that traces a line to its sentence, and says what happens there."""
    place = cause.comment() if cause is not None else ""
    return comment(": ".join(t for t in (place, said) if t), indent) if said or place else ""


def lines(*parts: str) -> str:
    """Joined lines, without the empty ones."""
    return "\n".join(p for p in parts if p)
