"""Diagnostics as text: the quoted line, the arithmetic below it, then the help."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from textwrap import wrap

from planc.diag.diagnostic import Diagnostic
from planc.diag.quoting import log_line, printable
from planc.diag.span import Source, Span

SHOWN = 160
"""Columns of a quoted line; what lies beyond is cut, and so is the mark under it."""
COLOURS = {"error": "1;31", "warning": "1;33", "note": "1;36", "frame": "1;34", "bold": "1"}


def render(
    diagnostics: Iterable[Diagnostic],
    sources: Mapping[str, Source],
    *,
    width: int = 100,
    colour: bool = False,
) -> str:
    """Return every diagnostic as text with the lines that it marks. A blank line separates two diagnostics.

    Args:
        diagnostics: in the order in which they are shown.
        sources: text of each file by the name in spans. A diagnostic about any other file is shown without its line.
        width: columns of the terminal, at least 40.
        colour: True writes ANSI colours.
    """
    painter = _Painter(colour)
    text = "\n\n".join(_render_one(d, sources, max(40, width), painter) for d in diagnostics)
    return "\n".join(map(log_line, text.split("\n")))


def summary(diagnostics: Iterable[Diagnostic]) -> str:
    """Return the number of `diagnostics` of each severity, such as `2 errors, 1 warning`; "" if there are none."""
    counts: dict[str, int] = {}
    for d in diagnostics:
        counts[d.severity] = counts.get(d.severity, 0) + 1
    order = [(s, counts[s]) for s in ("error", "warning", "note") if s in counts]
    return ", ".join(f"{n} {s}{'s' if n > 1 else ''}" for s, n in order)


class _Painter:
    def __init__(self, colour: bool) -> None:
        self.colour = colour

    def __call__(self, text: str, role: str) -> str:
        return f"\033[{COLOURS[role]}m{text}\033[0m" if self.colour else text


def _render_one(d: Diagnostic, sources: Mapping[str, Source], width: int, paint: _Painter) -> str:
    head = paint(f"{d.severity}[{d.code}]", d.severity)
    lines = wrap(f"{d.severity}[{d.code}]: {_line(d.message)}", width) or [""]
    lines[0] = lines[0].replace(f"{d.severity}[{d.code}]", head, 1)
    lines.append(f"  {paint('-->', 'frame')} {printable(d.span.where())}")
    lines += _quotes(d, sources, paint)
    if d.help:
        lines += _labelled("help", d.help, width, paint)
    lines += _labelled("why", f"planc explain {d.code}", width, paint)
    return "\n".join(lines)


def _labelled(label: str, text: str, width: int, paint: _Painter) -> list[str]:
    wrapped = wrap(_line(text), width - 6) or [""]
    return [f"{paint(label + ':', 'bold'):<6}{wrapped[0]}", *(" " * 6 + w for w in wrapped[1:])]


def _quotes(d: Diagnostic, sources: Mapping[str, Source], paint: _Painter) -> list[str]:
    """Return the source lines that diagnostic `d` marks, in order. The line below each has the marks."""
    marks = [(d.span, "^", d.label), *((r.span, "-", r.message) for r in d.related)]
    marks = [m for m in marks if m[0].file in sources]
    marks.sort(key=lambda m: (m[0].file != d.span.file, m[0].line))
    gutter = max((len(str(m[0].line)) for m in marks), default=1)
    out: list[str] = []
    for span, mark, text in marks:
        line = sources[span.file].line(span.line)
        if span.file != d.span.file:
            out.append(f"  {paint('::', 'frame')} {printable(span.where())}")
        out.append(f"{paint(f'{span.line:>{gutter}} |', 'frame')} {_visible(line)}")
        underline = (" " * (span.column - 1) + mark * _width(span, line))[:SHOWN]
        role = d.severity if mark == "^" else "frame"
        out.append(f"{' ' * gutter} {paint('|', 'frame')} {paint(f'{underline} {printable(text)}'.rstrip(), role)}")
    return out


def _line(text: str) -> str:
    """Return prose `text` on one line, to be wrapped."""
    return printable(text.replace("\n", " "))


def _width(span: Span, line: str) -> int:
    end = span.end_column if span.end_line == span.line else len(line) + 1
    return max(1, min(end, len(line) + 2) - span.column)


def _visible(line: str) -> str:
    """Return `line` with control characters replaced, so that none reaches the terminal. Long lines are cut."""
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line.replace("\t", " "))
    return shown if len(shown) <= SHOWN else shown[: SHOWN - 3] + "..."
