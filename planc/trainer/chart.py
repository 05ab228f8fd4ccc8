"""Loss curves as plain characters for a terminal, and as a small SVG file. No plotting library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

MARKS = "*o+x#@"
"""One character a curve; where curves meet at one cell, the mark of several: `=`."""
TOGETHER = "="
HUES = ("#1f6feb", "#d1495b", "#2a9d5c", "#8a63d2", "#c77d0a", "#4b5563")


@dataclass(frozen=True)
class Curve:
    """A named run of values, one a step from step 1."""

    name: str
    values: tuple[float, ...]


def plot(curves: Sequence[Curve], width: int = 72, height: int = 12) -> str:
    """The curves in `width` columns at most, axis labels included."""
    low, high = _range(curves)
    columns = max(8, width - 8)
    grid = [[" "] * columns for _ in range(height)]
    for mark, curve in zip(_cycle(MARKS, len(curves)), curves, strict=True):
        for column, value in enumerate(_sampled(curve.values, columns)):
            row = round((high - value) / (high - low) * (height - 1))
            cell = grid[row][column]
            grid[row][column] = mark if cell in (" ", mark) else TOGETHER
    labels = {0: f"{high:.3f}", height - 1: f"{low:.3f}"}
    lines = [f"{labels.get(i, ''):>6} |{''.join(row).rstrip()}" for i, row in enumerate(grid)]
    steps = max(len(c.values) for c in curves)
    lines.append(" " * 7 + "+" + "-" * columns)
    lines.append(" " * 8 + "1" + f"step {steps}".rjust(columns - 1))
    lines += [f"{'':8}{mark} {c.name}" for mark, c in zip(_cycle(MARKS, len(curves)), curves, strict=True)]
    if len(curves) > 1:
        lines.append(f"{'':8}{TOGETHER} together")
    return "\n".join(line[:width].rstrip() for line in lines)


def svg(curves: Sequence[Curve], title: str, width: int = 640, height: int = 320) -> str:
    """The curves as an SVG document. Later curves are thinner, so that equal ones all show."""
    low, high = _range(curves)
    left, right, top, bottom = 56, 12, 36, 40
    steps = max(len(c.values) for c in curves)

    def x(index: int) -> float:
        return left + index / max(1, steps - 1) * (width - left - right)

    def y(value: float) -> float:
        return top + (high - value) / (high - low) * (height - top - bottom)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'font-family="sans-serif" font-size="12" fill="#57606a">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="{left}" y="20" fill="#24292f" font-size="14">{escape(title)}</text>',
    ]
    for fraction in (0.0, 0.25, 0.5, 0.75, 1.0):
        value = low + fraction * (high - low)
        parts.append(
            f'<path d="M{left} {y(value):.1f}H{width - right}" stroke="#d0d7de"/>'
            f'<text x="{left - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:.3f}</text>'
        )
    parts.append(f'<text x="{left}" y="{height - 22}">step 1</text>')
    parts.append(f'<text x="{width - right}" y="{height - 22}" text-anchor="end">step {steps}</text>')
    for number, curve in enumerate(curves):
        hue = HUES[number % len(HUES)]
        points = " ".join(f"{x(i):.1f},{y(v):.1f}" for i, v in enumerate(curve.values))
        line_width = 1.5 + 2.5 * (len(curves) - 1 - number)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{hue}" stroke-width="{line_width}"/>')
        place = left + number * (width - left - right) / len(curves)
        parts.append(f'<text x="{place:.1f}" y="{height - 6}" fill="{hue}">{escape(curve.name)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _range(curves: Sequence[Curve]) -> tuple[float, float]:
    """Smallest and largest value; never an empty range."""
    values = [v for c in curves for v in c.values]
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _sampled(values: Sequence[float], columns: int) -> list[float]:
    """One value a column: the curve stretched or thinned to the width."""
    last = len(values) - 1
    return [values[round(c * last / max(1, columns - 1))] for c in range(columns)]


def _cycle(marks: str, count: int) -> list[str]:
    return [marks[i % len(marks)] for i in range(count)]
