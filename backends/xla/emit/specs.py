"""Partition specs as text: `P("data", None)` and the rows of the tables of an emitted file."""

from __future__ import annotations

from planc.backends.common.source_writer import INDENT, WIDTH, beside, comment
from planc.backends.xla.analysis.layouts import Spec
from planc.diag.quoting import python_string


def spec_text(spec: Spec) -> str:
    """`spec` as source text: `P(("data", "fsdp"), "tp", None)`."""
    return f"P({', '.join(_entry(axes) for axes in spec)})"


def entry(key: str, spec: Spec, note: str = "") -> list[str]:
    """Lines of one row of a table of specs, `key: P(...)` for `spec`; `note` is its comment."""
    code = f"{INDENT}{python_string(key)}: {spec_text(spec)},"
    if len(code) <= WIDTH:
        return beside(code, note)
    parts = [_entry(axes) for axes in spec]
    inner = [f"{INDENT * 2}{', '.join(parts)}"]
    if len(inner[0]) > WIDTH:
        inner = [f"{INDENT * 2}{part}," for part in parts]
    return [*(comment(note, 1) if note else []), f"{INDENT}{python_string(key)}: P(", *inner, f"{INDENT}),"]


def axes_text(axes: tuple[str, ...]) -> str:
    """Source text of `axes` as a tuple of their names: `("fsdp", "ep")`."""
    return f"({', '.join(map(python_string, axes))}{',' if len(axes) == 1 else ''})"


def axis_text(axes: tuple[str, ...]) -> str:
    """Source text of `axes` as a collective takes them: the name of one, or a tuple of several."""
    return python_string(axes[0]) if len(axes) == 1 else axes_text(axes)


def _entry(axes: tuple[str, ...]) -> str:
    if not axes:
        return "None"
    if len(axes) == 1:
        return python_string(axes[0])
    return f"({', '.join(map(python_string, axes))})"
