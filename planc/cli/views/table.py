"""Columns of text. Written here because a table library would take as long to load as the check."""

from __future__ import annotations

from collections.abc import Sequence


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1, left_last: bool = False) -> list[str]:
    """Lines of aligned cells: the first `left` columns (and perhaps the last) to the left, numbers right."""
    lines = [list(heads), *(list(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(heads))]
    last = len(heads) - 1

    def cell(index: int, text: str) -> str:
        if index < left or (left_last and index == last):
            return text.ljust(widths[index])
        return text.rjust(widths[index])

    return ["  ".join(cell(i, text) for i, text in enumerate(line)).rstrip() for line in lines]
