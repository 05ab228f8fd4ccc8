"""Pieces of Python text that `ruff format` leaves as they are."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from planc.backends.xla.analysis.layouts import Spec
from planc.diag.quoting import python_comment, python_string
from planc.ir.base import Cause

WIDTH = 110
INDENT = "    "


def comment(text: str, indent: int = 0) -> list[str]:
    """`text` as comment lines within the width."""
    prefix = INDENT * indent + "# "
    return textwrap.wrap(python_comment(text), WIDTH, initial_indent=prefix, subsequent_indent=prefix + "  ")


def beside(code: str, said: str) -> list[str]:
    """A line of code with a comment after it, or above it where the line would be too long."""
    if not said:
        return [code]
    line = f"{code}  # {python_comment(said)}"
    if len(line) <= WIDTH:
        return [line]
    indent = len(code) - len(code.lstrip())
    return [*comment(said, indent // len(INDENT)), code]


def causes(found: Iterable[Cause | None], indent: int = 0) -> list[str]:
    """The sentences something comes from, each once, as comment lines."""
    said = dict.fromkeys(c.comment() for c in found if c is not None)
    return [line for text in said for line in comment(text, indent)]


def spec_text(spec: Spec) -> str:
    """`P(("data", "fsdp"), "tp", None)`."""
    return f"P({', '.join(_entry(axes) for axes in spec)})"


def entry(key: str, spec: Spec, said: str = "") -> list[str]:
    """One row of a table of specs, over several lines where one is too short."""
    code = f"{INDENT}{python_string(key)}: {spec_text(spec)},"
    if len(code) <= WIDTH:
        return beside(code, said)
    parts = [_entry(axes) for axes in spec]
    inner = [f"{INDENT * 2}{', '.join(parts)}"]
    if len(inner[0]) > WIDTH:
        inner = [f"{INDENT * 2}{part}," for part in parts]
    return [*(comment(said, 1) if said else []), f"{INDENT}{python_string(key)}: P(", *inner, f"{INDENT}),"]


def _entry(axes: tuple[str, ...]) -> str:
    if not axes:
        return "None"
    if len(axes) == 1:
        return python_string(axes[0])
    return f"({', '.join(map(python_string, axes))})"
