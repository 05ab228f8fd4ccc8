"""Displays values in notebooks: as text, a fragment of HTML without scripts, SVG and JSON."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Collection
from functools import cached_property
from importlib import import_module
from typing import Any

from planc.diag.fast_dataclass import dataclass
from planc.picture.marks import Picture

SCOPE = "planc-shown"
"""Class of the element below which the styles of a fragment hold."""


@dataclass(frozen=True, kw_only=True)
class Shown:
    """The content that a notebook displays for a value: a title, a sentence, and a table, pictures or program text."""

    title: str
    summary: str
    pictures: tuple[tuple[str, Picture], ...] = ()
    heads: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    code: str = ""


VIEWS = "planc.report.notebook"
"""The module that says what is shown of a value, by the name of its type; nothing loads it before a value is shown."""


class InNotebook:
    """Base class of values that notebooks display. The module `VIEWS` has the display function of each subclass."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Return the value as JSON data."""

    @cached_property
    def _bundle(self) -> dict[str, Any]:
        shown: Shown = import_module(VIEWS).SHOWN[type(self).__name__](self)
        return bundle(shown, self.to_json())

    def _repr_mimebundle_(
        self, include: Collection[str] | None = None, exclude: Collection[str] | None = None
    ) -> dict[str, Any]:
        """Return every display format of the value by MIME type. `include` and `exclude` select types."""
        left_out = set(exclude or ())
        return {k: v for k, v in self._bundle.items() if (not include or k in include) and k not in left_out}

    def _repr_html_(self) -> str:
        html: str = self._bundle["text/html"]
        return html

    def _repr_svg_(self) -> str | None:
        return self._bundle.get("image/svg+xml")


def bundle(shown: Shown, json: dict[str, Any]) -> dict[str, Any]:
    """Return the display of a value by MIME type: `shown` as text, HTML and SVG, and the value itself as `json`."""
    from planc.picture.render import picture_css, rendered, sheet

    css = scoped(picture_css(), f".{SCOPE}")
    found: dict[str, Any] = {
        "text/plain": "\n".join(_lines(shown)),
        "text/html": rendered("notebook.html.j2", shown=shown, css=css, scope=SCOPE),
        "application/json": json,
    }
    if shown.pictures:
        found["image/svg+xml"] = sheet(shown.title, shown.pictures)
    return found


def _lines(shown: Shown) -> list[str]:
    if shown.code:
        return [f"{shown.title}: {shown.summary}", "", shown.code.rstrip()]
    if not shown.rows:
        return [shown.summary]
    table = (shown.heads, *shown.rows)
    widths = [max(len(row[i]) for row in table) for i in range(len(shown.heads))]
    return [shown.summary, "", *("  ".join(map(str.ljust, row, widths)).rstrip() for row in table)]


def scoped(css: str, scope: str) -> str:
    """Return the stylesheet `css`, restricted to elements inside the selector `scope`; `:root` becomes `scope` itself.

    >>> scoped(":root{--a:1}.b,.c .d{fill:red}@media print{.b{fill:blue}}", ".s")
    '.s{--a:1}.s .b,.s .c .d{fill:red}@media print{.s .b{fill:blue}}'
    """

    def rule(match: re.Match[str]) -> str:
        selectors = (s.strip() for s in match[1].split(","))
        return f"{','.join(scope if s == ':root' else f'{scope} {s}' for s in selectors)}{{"

    return re.sub(r"(?<![@\w])([.:][^{}@;]*)\{", rule, css)
