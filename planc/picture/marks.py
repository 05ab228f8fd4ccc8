"""Marks on a plane, in pixels from the upper left corner, and the picture that they make."""

from __future__ import annotations

from typing import Literal, NamedTuple

from planc.diag.fast_dataclass import dataclass

Anchor = Literal["start", "middle", "end"]
WIDE, NARROW = 920, 360
"""Widths of a picture (pixels): of a page, and of a telephone."""
CHARACTER = 6.8
"""Mean width of a character of 12 pixels (pixels)."""


class Rect(NamedTuple):
    """A rectangle; `title` is shown while the pointer rests on it, `css` names its class."""

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
    """A line of text whose foot is at `y`."""

    x: float
    y: float
    text: str
    css: str = ""
    anchor: Anchor = "start"
    kind: str = "text"


class Path(NamedTuple):
    """A path of SVG's commands `d`, which hold numbers of ours alone."""

    d: str
    css: str
    title: str = ""
    kind: str = "path"


class Circle(NamedTuple):
    """A point of a scatter plot."""

    x: float
    y: float
    r: float
    css: str
    title: str = ""
    kind: str = "circle"


Mark = Rect | StraightLine | Text | Path | Circle


@dataclass(frozen=True)
class Picture:
    """Marks, with the title and the sentence that stand for them where they cannot be seen."""

    width: float
    height: float
    title: str
    summary: str
    marks: tuple[Mark, ...]


def text_px(text: str) -> float:
    """Width of `text` of 12 pixels (pixels), as near as a mean character tells.

    >>> text_px("stage 0") > text_px("tp")
    True
    """
    return CHARACTER * len(text)


def clipped(text: str, width_px: float) -> str:
    """`text`, cut so that it fits `width_px` pixels; an ellipsis stands for the rest.

    >>> clipped("reduce_scatter", 50)
    'reduce…'
    """
    most = max(1, int(width_px / CHARACTER))
    return text if len(text) <= most else f"{text[: most - 1]}…"
