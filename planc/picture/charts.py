"""Charts for reports: stacked bars with a limit, bars that diverge from zero, and curves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from planc.picture.marks import Circle, Mark, Path, Picture, Rect, StraightLine, Text, clipped, text_px
from planc.picture.scales import Scale, tick_text

MOST_TALL = 24
"""Rows whose bars are tall; more are drawn thin."""


WIDEST = 1.25
"""Width of a label in wide letters, as a multiple of the mean: right-aligned labels must not begin outside the
picture."""
OUTLIER = 4.0
"""A bar more than this multiple of the next longest is drawn cut, so that the others can be told apart."""


class BarPart(NamedTuple):
    """A part that all bars of a chart have: its CSS class, which gives the colour, and its name in the legend."""

    css: str
    name: str


class Bar(NamedTuple):
    """One bar of a chart: its name, the value of each part, and the text at its end. `strong` emphasizes the name."""

    name: str
    values: Sequence[float]
    end: str
    strong: bool = False


class Limit(NamedTuple):
    """A line across all bars at `value`, labelled `name`."""

    value: float
    name: str


def legend(parts: Sequence[BarPart], width: float, y: float = 14) -> tuple[list[Mark], float]:
    """Return the marks of a legend (coloured squares with names), wrapped at `width` pixels, and its lower end: the
    number of pixels from the top.

    `parts` are the entries, and `y` is the baseline of the first line (pixels).
    """
    marks: list[Mark] = []
    x = 0.0
    for part in parts:
        room = 16 + text_px(part.name) + 14
        if x and x + room > width:
            x, y = 0.0, y + 18
        marks += [Rect(x, y - 10, 11, 11, part.css), Text(x + 16, y, part.name, "small")]
        x += room
    return marks, y + 12


def stacked_bars(
    rows: Sequence[Bar],
    parts: Sequence[BarPart],
    *,
    title: str,
    summary: str,
    unit: str,
    width: float,
    limit: Limit | None = None,
) -> Picture:
    """Return a chart of horizontal bars of stacked parts.

    Args:
        rows: the bars from top to bottom.
        parts: name and colour of each value of a bar; a part that is 0 in every bar is left out.
        title: the title of the picture.
        summary: a sentence for readers who cannot see the picture.
        unit: unit of the horizontal axis.
        width: width of the picture (pixels).
        limit: a line across all bars; None for no line.
    """
    used = [i for i in range(len(parts)) if any(row.values[i] > 0 for row in rows)]
    marks, top = legend([parts[i] for i in used], width) if len(parts) > 1 else ([], 4.0)
    narrow = width < 500
    left = min(width * (0.4 if narrow else 0.3), WIDEST * max(text_px(row.name) for row in rows) + 10)
    right = max(text_px(row.end) for row in rows) + 8
    top += 14 if limit else 0
    tall = len(rows) <= MOST_TALL
    bar, gap = (20, 7) if tall else (9, 2)
    most = max([sum(row.values) for row in rows] + ([limit.value] if limit else []))
    past = max([sum(row.values) for row in rows]) >= 0.8 * most
    scale = Scale(0, most or 1.0, left, width - (right + 6 if past or limit else 8))
    bottom = top + len(rows) * (bar + gap)
    marks += _axis(scale, top, bottom, unit)
    every = 1 if tall else -(-len(rows) // MOST_TALL)
    for at, row in enumerate(rows):
        y = top + at * (bar + gap)
        foot = y + bar / 2 + 4
        if at % every == 0:
            label = clipped(row.name, (left - 8) / WIDEST)
            marks.append(Text(left - 8, foot, label, "strong" if row.strong else "", "end"))
        x = scale.px(0)
        for i in used:
            wide = scale.px(row.values[i]) - scale.px(0)
            if wide > 0.05:
                title = f"{row.name}, {parts[i].name}: {_value(row.values[i])} {unit}" if tall and not narrow else ""
                marks.append(Rect(x, y, wide, bar, parts[i].css, title))
            x += wide
        if at % every == 0:
            end = scale.end + 12 if limit else x + 6
            marks.append(Text(end, foot, row.end, "strong number" if row.strong else "number"))
    if limit:
        x = scale.px(limit.value)
        marks += [StraightLine(x, top - 6, x, bottom, "limit"), Text(x, top - 10, limit.name, "limit-text", "end")]
    return Picture(width, bottom + 34, title, summary, tuple(marks))


def _axis(scale: Scale, top: float, bottom: float, unit: str) -> Iterator[Mark]:
    ticks = scale.ticks(5 if scale.end - scale.start > 300 else 3)
    for tick in ticks:
        x = scale.px(tick)
        yield StraightLine(x, top - 2, x, bottom, "grid")
        yield Text(x, bottom + 16, tick_text(tick), "small", "middle")
    yield Text(scale.end, bottom + 30, unit, "small", "end")


def _value(value: float) -> str:
    return f"{value:,.4g}"


def _longest_drawn(lengths: Sequence[float]) -> float:
    """Return the length of the longest bar that is drawn whole: a single one far above the others is cut.

    >>> _longest_drawn([3, 1, 2]), _longest_drawn([50, 1, 2])
    (3, 4)
    """
    first, *others = sorted(lengths, reverse=True)
    next_ = others[0] if others else first
    return (2 * next_ if 0 < OUTLIER * next_ < first else first) or 1.0


class DivergingRow(NamedTuple):
    """A row with two bars, one per column. Each bar is a change, drawn to the left (negative) or right (positive) of
    zero, with a text."""

    name: str
    values: tuple[float, float]
    texts: tuple[str, str]
    css: tuple[str, str]
    faint: bool = False


def diverging_bars(
    rows: Sequence[DivergingRow], heads: tuple[str, str], *, title: str, summary: str, width: float
) -> Picture:
    """Return a chart of rows with two columns of bars, which extend from zero to the left or to the right.

    `rows` are drawn from top to bottom below `heads`, the names of the columns. `title` is the title of the picture,
    `summary` a sentence for readers who cannot see it, and `width` its width (pixels).
    """
    narrow = width < 500
    left = 0.0 if narrow else min(0.42 * width, max(text_px(row.name) for row in rows) + 16)
    column = (width - left) / 2
    row_px = 44 if narrow else 26
    marks: list[Mark] = []
    top = 26.0
    bottom = top + row_px * len(rows)
    for c, head in enumerate(heads):
        start = left + c * column
        label = max(text_px(row.texts[c]) for row in rows) + 10
        most = _longest_drawn([abs(row.values[c]) for row in rows])
        low = -most if any(row.values[c] < 0 for row in rows) else 0.0
        high = most if any(row.values[c] > 0 for row in rows) else 0.0
        scale = Scale(low, high, start + 8, start + column - label - 12)
        zero = scale.px(0)
        marks += [Text(start + 8, 14, head, "small strong"), StraightLine(zero, top - 4, zero, bottom, "axis")]
        for at, row in enumerate(rows):
            y = top + at * row_px + (18 if narrow else 4)
            cut = abs(row.values[c]) > most
            x = scale.px(max(-most, min(most, row.values[c])))
            css = row.css[c] + (" faint" if row.faint else "")
            marks.append(Rect(min(x, zero), y, max(abs(x - zero), 0.8), 14, css, f"{row.name}: {row.texts[c]}"))
            for px in (-3, 2) if cut else ():
                at_px = zero + 0.85 * (x - zero) + px
                marks.append(StraightLine(at_px, y - 2, at_px + 4, y + 16, "cut"))
            marks.append(Text(start + column - 4, y + 11, row.texts[c], "number", "end"))
    for at, row in enumerate(rows):
        y = top + at * row_px + (13 if narrow else 15)
        marks.append(Text(0, y, clipped(row.name, width if narrow else left - 8), ""))
    return Picture(width, bottom + 8, title, summary, tuple(marks))


class Curve(NamedTuple):
    """A curve through `values` at `xs`: its name, and the CSS class that gives its colour (`css` for the line,
    `css`-key for the legend, `css`-point for points)."""

    name: str
    css: str
    xs: Sequence[float]
    values: Sequence[float]
    points: bool = False
    """True to draw each value as a point too, for curves with few values."""


def curves(
    lines: Sequence[Curve],
    *,
    title: str,
    summary: str,
    unit: str,
    width: float,
    marks_at: Sequence[float] = (),
    from_zero: bool = False,
) -> Picture:
    """Return a chart of curves over the steps of a run.

    Args:
        lines: the curves; the last one is drawn on top.
        title: the title of the picture.
        summary: a sentence for readers who cannot see the picture.
        unit: unit of the values.
        width: width of the picture (pixels).
        marks_at: steps at which a vertical line is drawn.
        from_zero: True if the vertical axis starts at zero.
    """
    marks, top = legend([BarPart(f"{c.css}-key", c.name) for c in lines], width) if len(lines) > 1 else ([], 4.0)
    values = [v for c in lines for v in c.values]
    low, high = (0.0 if from_zero else min(values)), max(values)
    pad = 0.06 * (high - low) or 0.1 * abs(high) or 1.0
    left, top, bottom = 56.0, top + 24, top + 244.0
    across = Scale(min(c.xs[0] for c in lines), max(c.xs[-1] for c in lines), left, width - 12)
    up = Scale(low if from_zero else low - pad, high + pad, bottom, top)
    for tick in up.ticks(5):
        y = up.px(tick)
        marks += [StraightLine(left, y, width - 12, y, "grid"), Text(left - 6, y + 4, tick_text(tick), "small", "end")]
    for tick in across.ticks(7 if width > 500 else 4):
        marks.append(Text(across.px(tick), bottom + 16, tick_text(tick), "small", "middle"))
    marks += [Text(0, top - 10, unit, "small"), Text(width - 12, bottom + 32, "step", "small", "end")]
    marks += [StraightLine(across.px(x), top, across.px(x), bottom, "start") for x in marks_at]
    for c in lines:
        places = [(across.px(x), up.px(v)) for x, v in zip(c.xs, c.values, strict=True)]
        marks.append(Path(f"M{'L'.join(f'{x:.1f} {y:.1f}' for x, y in places)}", c.css))
        if c.points or len(places) == 1:
            marks += [Circle(x, y, 3, f"{c.css}-point") for x, y in places]
    return Picture(width, bottom + 38, title, summary, tuple(marks))
