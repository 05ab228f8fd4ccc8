"""Types of marks: shapes and text at positions in pixels from the upper left corner, and the picture that they form."""

from __future__ import annotations

from typing import Literal, NamedTuple

from planc.diag.fast_dataclass import dataclass

Anchor = Literal["start", "middle", "end"]
WIDE, NARROW = 920, 360
"""Widths of a picture (pixels): of a page, and of a telephone."""
CHARACTER = 6.8
"""Mean width of a character of 12 pixels (pixels)."""


class Rect(NamedTuple):
    """A rectangle. `title` is its tooltip, `css` its CSS class."""

    x: float
    y: float
    width: float
    height: float
    css: str
    title: str = ""
    kind: str = "rect"


class StraightLine(NamedTuple):
    """A straight line between two points."""

    x1: float
    y1: float
    x2: float
    y2: float
    css: str = "axis"
    kind: str = "line"


class Text(NamedTuple):
    """A line of text with its baseline at `y`."""

    x: float
    y: float
    text: str
    css: str = ""
    anchor: Anchor = "start"
    kind: str = "text"


class Path(NamedTuple):
    """An SVG path with the commands `d`, which planc writes from numbers only."""

    d: str
    css: str
    title: str = ""
    kind: str = "path"


class Circle(NamedTuple):
    """A circle, such as a point of a scatter plot."""

    x: float
    y: float
    r: float
    css: str
    title: str = ""
    kind: str = "circle"


Mark = Rect | StraightLine | Text | Path | Circle


@dataclass(frozen=True)
class Picture:
    """Marks, with a title and a summary (a sentence) for readers who cannot see them."""

    width: float
    height: float
    title: str
    summary: str
    marks: tuple[Mark, ...]


def text_px(text: str) -> float:
    """Return the approximate width (pixels) of `text` in a font of 12 pixels, from the mean width of a character.

    >>> text_px("stage 0") > text_px("tp")
    True
    """
    return CHARACTER * len(text)


def clipped(text: str, width_px: float) -> str:
    """Return `text`, cut to fit `width_px` pixels, with an ellipsis in place of the rest.

    >>> clipped("reduce_scatter", 50)
    'reduce…'
    """
    most = max(1, int(width_px / CHARACTER))
    return text if len(text) <= most else f"{text[: most - 1]}…"
