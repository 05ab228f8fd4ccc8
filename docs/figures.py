"""Measured figures that pages repeat, taken from the page that measured them.

    half are within <!-- figure measured/accuracy.md | all | median -->6.3 %<!-- end -->

is the cell of row `all`, column `median`, of the first table of that page which has both. `make docs` writes the
figures anew, and a test compares them. Of columns that share a name the first counts.
"""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parent
FIGURE = re.compile(
    r"<!-- figure (?P<page>[^|]+?) \| (?P<row>[^|]+?) \| (?P<column>[^|]+?) -->(?P<shown>.*?)<!-- end -->", re.DOTALL
)


class FigureError(ValueError):
    """A figure that the page it names does not have."""


def measured(page: str, row: str, column: str) -> str:
    """The cell of `row` (its first cell) and `column` (its heading) in a table of `page`, a path from `docs/`."""
    header: list[str] = []
    for line in (DOCS / page).read_text().splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")] if line.startswith("|") else []
        if not header or not cells:
            header = cells
        elif cells[0] == row and column in header:
            return cells[header.index(column)]
    raise FigureError(f"{page} has no table with a row {row!r} and a column {column!r}")


def filled(text: str) -> str:
    """The text of a page with every figure as it was measured."""
    return FIGURE.sub(lambda m: m[0].replace(f"-->{m['shown']}<!--", f"-->{measured(m[1], m[2], m[3])}<!--"), text)
