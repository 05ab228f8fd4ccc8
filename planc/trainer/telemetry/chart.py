"""Draws curves as text for a terminal and as a small SVG file, without a plotting library.

Values are equally spaced, one per training step unless `Across` gives other labels. NaN values are skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite

from planc.diag.quoting import xml_text

Say = Callable[[float], str]
MOST_LABELS = 16
"""Maximum number of labels below an SVG's curves; more would overlap."""

MARKS = "*o+x#@"
"""One character per curve; a cell of several curves has `=`."""
TOGETHER = "="
HUES = ("#1f6feb", "#d1495b", "#2a9d5c", "#8a63d2", "#c77d0a", "#4b5563")


@dataclass(frozen=True)
class Series:
    """A named curve: a sequence of values."""

    name: str
    values: tuple[float, ...]


@dataclass(frozen=True)
class Across:
    """The horizontal axis of a chart: a label for each value, and the title (`what`)."""

    labels: tuple[str, ...]
    what: str


def _decimals(value: float) -> str:
    return f"{value:.3f}"


def plot(
    curves: Sequence[Series],
    width: int = 72,
    height: int = 12,
    *,
    across: Across | None = None,
    say: Say = _decimals,
) -> str:
    """Return the curves as text of at most `width` columns (axis labels included) and `height` lines.

    `across` labels the horizontal axis (None: steps from 1), and `say` formats a value of the vertical axis.
    """
    low, high = _range(curves)
    labels = {0: say(high), height - 1: say(low)}
    left = max(6, *map(len, labels.values()))
    columns = max(8, width - left - 2)
    grid = [[" "] * columns for _ in range(height)]
    for mark, curve in zip(_cycle(MARKS, len(curves)), curves, strict=True):
        for column, value in enumerate(_sampled(curve.values, columns)):
            if not isfinite(value):
                continue
            row = round((high - value) / (high - low) * (height - 1))
            cell = grid[row][column]
            grid[row][column] = mark if cell in (" ", mark) else TOGETHER
    lines = [f"{labels.get(i, ''):>{left}} |{''.join(row).rstrip()}" for i, row in enumerate(grid)]
    below = across or _steps(curves)
    lines.append(" " * (left + 1) + "+" + "-" * columns)
    first, last = below.labels[0], f"{below.what} {below.labels[-1]}"
    lines.append(" " * (left + 2) + first + last.rjust(columns - len(first)))
    lines += [f"{'':{left + 2}}{mark} {c.name}" for mark, c in zip(_cycle(MARKS, len(curves)), curves, strict=True)]
    if len(curves) > 1:
        lines.append(f"{'':{left + 2}}{TOGETHER} together")
    return "\n".join(line[:width].rstrip() for line in lines)


def _steps(curves: Sequence[Series]) -> Across:
    """Return the x axis for training steps, counted from 1: only the first and the last have a label."""
    return Across(("1", str(max(len(c.values) for c in curves))), "step")


def svg(curves: Sequence[Series], title: str, *, across: Across | None = None, say: Say = _decimals) -> str:
    """Return the curves as an SVG document.

    Args:
        curves: one curve per run; earlier ones have thicker lines, so that equal curves are all visible.
        title: heading of the plot.
        across: labels of the horizontal axis; None: steps from 1.
        say: formats a value of the vertical axis.
    """
    frame = _Frame(*_range(curves), steps=max(len(c.values) for c in curves))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {frame.width} {frame.height}" role="img" '
        'font-family="sans-serif" font-size="12" fill="#57606a">',
        f"<title>{xml_text(title)}</title>",
        f'<rect width="{frame.width}" height="{frame.height}" fill="#ffffff"/>',
        f'<text x="{frame.left}" y="20" fill="#24292f" font-size="14">{xml_text(title)}</text>',
        *_axes(frame, say),
        *_x_labels(frame, across or _steps(curves)),
        *(
            line
            for number, curve in enumerate(curves)
            for line in _curve(frame, curve, number, len(curves), 2.0 if across else _line_width(number, len(curves)))
        ),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


@dataclass(frozen=True)
class _Frame:
    """The plot area, and the mapping from values to pixels."""

    low: float
    high: float
    steps: int
    width: int = 640
    height: int = 320
    left: int = 56
    right: int = 628
    top: int = 36
    bottom: int = 280

    def x(self, index: int) -> float:
        return self.left + index / max(1, self.steps - 1) * (self.right - self.left)

    def y(self, value: float) -> float:
        return self.top + (self.high - value) / (self.high - self.low) * (self.bottom - self.top)


def _axes(frame: _Frame, say: Say) -> list[str]:
    """Return five horizontal grid lines with their values."""
    lines = []
    for fifth in range(5):
        value = frame.low + fifth / 4 * (frame.high - frame.low)
        y = frame.y(value)
        lines.append(
            f'<path d="M{frame.left} {y:.1f}H{frame.right}" stroke="#d0d7de"/>'
            f'<text x="{frame.left - 6}" y="{y + 4:.1f}" text-anchor="end">{xml_text(say(value))}</text>'
        )
    return lines


def _x_labels(frame: _Frame, across: Across) -> list[str]:
    """Return the labels of the horizontal axis: all of them, or only the first and the last if there are many."""
    y = frame.bottom + 18
    what, labels = xml_text(across.what), across.labels
    lines = [
        f'<text x="{frame.left}" y="{y}">{what} {xml_text(labels[0])}</text>',
        f'<text x="{frame.right}" y="{y}" text-anchor="end">{what} {xml_text(labels[-1])}</text>',
    ]
    if 2 < len(labels) <= MOST_LABELS:
        inner = list(enumerate(labels))[1:-1]
        middle = [f'<text x="{frame.x(i):.1f}" y="{y}" text-anchor="middle">{xml_text(n)}</text>' for i, n in inner]
        lines[1:1] = middle
    return lines


def _line_width(number: int, of: int) -> float:
    """Return the line width in pixels; the last of several curves is the thinnest."""
    return 1.5 + 2.5 * (of - 1 - number)


def _curve(frame: _Frame, curve: Series, number: int, of: int, wide: float) -> list[str]:
    """Return curve number `number` of `of` as SVG lines, with its name below the plot."""
    hue = HUES[number % len(HUES)]
    points = " ".join(f"{frame.x(i):.1f},{frame.y(v):.1f}" for i, v in enumerate(curve.values) if isfinite(v))
    x = frame.left + number * (frame.right - frame.left) / of
    return [
        f'<polyline points="{points}" fill="none" stroke="{hue}" stroke-width="{wide}"/>',
        f'<text x="{x:.1f}" y="{frame.height - 6}" fill="{hue}">{xml_text(curve.name)}</text>',
    ]


def _range(curves: Sequence[Series]) -> tuple[float, float]:
    """Return the smallest and the largest value, or a range around the value if all are equal."""
    values = [v for c in curves for v in c.values if isfinite(v)]
    low, high = min(values, default=0.0), max(values, default=0.0)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _sampled(values: Sequence[float], columns: int) -> list[float]:
    """Return one value per column: some of the values if there are more than columns, else linear interpolations
    between them."""
    last = len(values) - 1
    places = [c * last / max(1, columns - 1) for c in range(columns)]
    if len(values) >= columns:
        return [values[round(p)] for p in places]
    drawn = [values[int(p)] + (p % 1) * (values[min(int(p) + 1, last)] - values[int(p)]) for p in places]
    for i, value in enumerate(values):
        drawn[round(i * (columns - 1) / max(1, last))] = value
    return drawn


def _cycle(marks: str, count: int) -> list[str]:
    return [marks[i % len(marks)] for i in range(count)]
