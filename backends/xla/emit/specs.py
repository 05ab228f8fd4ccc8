"""Formats partition specs as source: `P("data", None)` and the rows of the tables of an emitted file."""

from __future__ import annotations

from planc.backends.common.source_writer import INDENT, WIDTH, beside, comment
from planc.backends.xla.analysis.layouts import Spec
from planc.diag.quoting import python_string


def spec_text(spec: Spec) -> str:
    """Return `spec` as source: `P(("data", "fsdp"), "tp", None)`."""
    return f"P({', '.join(_entry(axes) for axes in spec)})"


def entry(key: str, spec: Spec, note: str = "") -> list[str]:
    """Return the lines of one table row, `key: P(...)` for `spec`, with `note` as its comment."""
    code = f"{INDENT}{python_string(key)}: {spec_text(spec)},"
    if len(code) <= WIDTH:
        return beside(code, note)
    parts = [_entry(axes) for axes in spec]
    inner = [f"{INDENT * 2}{', '.join(parts)}"]
    if len(inner[0]) > WIDTH:
        inner = [f"{INDENT * 2}{part}," for part in parts]
    return [*(comment(note, 1) if note else []), f"{INDENT}{python_string(key)}: P(", *inner, f"{INDENT}),"]


def axes_text(axes: tuple[str, ...]) -> str:
    """Return `axes` as source, a tuple of names: `("fsdp", "ep")`."""
    return f"({', '.join(map(python_string, axes))}{',' if len(axes) == 1 else ''})"


def axis_text(axes: tuple[str, ...]) -> str:
    """Return `axes` as source for a collective: one name, or a tuple of names."""
    return python_string(axes[0]) if len(axes) == 1 else axes_text(axes)


def _entry(axes: tuple[str, ...]) -> str:
    if not axes:
        return "None"
    if len(axes) == 1:
        return python_string(axes[0])
    return f"({', '.join(map(python_string, axes))})"
