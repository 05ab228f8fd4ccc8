"""Renders pictures as SVG and HTML fragments, with templates that escape every string."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from planc.picture.marks import Picture

if TYPE_CHECKING:
    from jinja2 import Environment


@cache
def environment(*packages: str) -> Environment:
    """Return the Jinja environment with the templates of these `packages`. Every string is passed through `clean` and
    escaped."""
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    loader = ChoiceLoader([PackageLoader(name) for name in packages])
    made = Environment(
        loader=loader,
        autoescape=True,
        finalize=_printed,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["px"] = pixels
    return made


def _printed(value: Any) -> Any:
    """Return `value` as templates print it: `clean` is applied to strings, but not to markup."""
    return clean(value) if type(value) is str else value


def pixels(value: float) -> str:
    """Return a number of pixels as text, with at most one decimal.

    >>> pixels(12.04), pixels(12.5)
    ('12', '12.5')
    """
    return f"{value:.1f}".removesuffix(".0")


BARRED = {*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C, *range(0x7F, 0xA0)}
"""Marks that turn the direction of text, and control characters: shown by their number."""


def clean(text: str) -> str:
    """Return `text` with `\\uXXXX` in place of control characters, and of characters that reorder the text around them.

    >>> clean("a\\x1b[31m\\u202eb")
    'a\\\\u001b[31m\\\\u202eb'
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if _shown(ord(c)) else f"\\u{ord(c):04x}" for c in text)


def _shown(code: int) -> bool:
    if code < 0x20:
        return code in (0x09, 0x0A)
    return code not in BARRED and not 0xD800 <= code < 0xE000 and code not in (0xFFFE, 0xFFFF)


def svg(picture: Picture) -> str:
    """Return `picture` as an SVG element, for a page that includes `picture_css()`."""
    return rendered("picture.svg.j2", picture=picture, y=None)


@cache
def picture_css() -> str:
    """Return the stylesheet of pictures, for light mode, dark mode and print."""
    return environment("planc.picture").get_template("picture.css").render()


def sheet(title: str, pictures: Sequence[tuple[str, Picture]]) -> str:
    """Return an SVG file of `pictures`, each (heading, picture), below each other, with the stylesheet that they
    need."""
    placed, y = [], 30.0
    for heading, picture in pictures:
        placed.append((y, heading, picture))
        y += picture.height + 52
    width = max(picture.width for _, picture in pictures)
    return rendered("sheet.svg.j2", title=title, placed=placed, width=width + 40, height=y)


def rendered(template: str, **values: Any) -> str:
    """Return the file `template` of this package, with its variables replaced by `values`."""
    return environment("planc.picture").get_template(template).render(**values)
