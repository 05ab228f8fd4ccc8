"""Formatting of text tables. Written here because importing a library would take as long as checking a plan.

A table that is too wide for the terminal is changed: a last column of prose wraps; other columns are split into several
tables, each with the first columns; or else each row becomes a paragraph.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from textwrap import wrap

from planc.cli.common import width

PROSE = 16
"""Smallest width (columns) of wrapped last cells."""
INDENT = "  "
Row = Sequence[str]


def table(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    left: int = 1,
    left_last: bool = False,
    columns: int | None = None,
) -> list[str]:
    """Return the lines of a table with aligned columns.

    Args:
        heads: names of the columns.
        rows: cells, as many in each row as there are heads.
        left: number of the first columns, which name a row and are left-aligned; the others are right-aligned.
        left_last: True if the last column is prose, left-aligned too.
        columns: limit on the columns of a line; 0: no limit; None: the terminal's, no limit if there is none.
    """
    lines = [list(heads), *(list(row) for row in rows)]
    most = terminal_columns() if columns is None else columns
    made = _aligned(lines, left, left_last)
    if not most or max(map(len, made)) <= most:
        return made
    without = _aligned([line[:-1] for line in lines], left, False)
    rest = most - max(map(len, without)) - 2
    if left_last and all(set(line[-1]) <= {"#"} for line in lines):
        return table(heads[:-1], [row[:-1] for row in rows], left=left, columns=most)  # bars
    if left_last and rest >= PROSE:
        return list(_beside(lines, left, rest))
    named = _aligned([line[:left] for line in lines], left, False)
    numbers = [[line[i] for line in lines] for i in range(left, len(heads) - left_last)]
    widest = max((len(cell) for column in numbers for cell in column), default=0)
    if left and max(map(len, named)) + 2 + widest <= most:
        return list(_bands(lines, left, left_last, most))
    return list(_paragraphs(lines, left, left_last, most))


def terminal_columns() -> int:
    """Return the width of the terminal in columns; 0 if standard output is not a terminal."""
    return width() if sys.stdout.isatty() else 0


def fitted(lines: Iterable[str]) -> Iterator[str]:
    """Yield `lines`; on a terminal, lines that are too long are wrapped."""
    most = terminal_columns()
    for line in lines:
        if most and _seen(line) > most:
            yield from wrap(line, max(most, PROSE), subsequent_indent=INDENT, break_on_hyphens=False)
        else:
            yield line


def _seen(line: str) -> int:
    """Return the visible columns of `line`, without escape codes for bold."""
    return len(line.replace("\033[1m", "").replace("\033[0m", ""))


def _aligned(lines: Sequence[Row], left: int, left_last: bool) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    last = len(widths) - 1

    def cell(index: int, text: str) -> str:
        to_left = index < left or (left_last and index == last)
        return text.ljust(widths[index]) if to_left else text.rjust(widths[index])

    return ["  ".join(cell(i, text) for i, text in enumerate(line)).rstrip() for line in lines]


def _beside(lines: Sequence[Row], left: int, columns: int) -> Iterator[str]:
    """Yield the table with its last column wrapped, at most `columns` wide."""
    cells: list[Row] = []
    for line in lines:
        first, *more = wrap(line[-1].strip(), columns) or [""]
        cells += [[*line[:-1], first], *([*[""] * (len(line) - 1), text] for text in more)]
    yield from _aligned(cells, left, True)


def _bands(lines: Sequence[Row], left: int, left_last: bool, most: int) -> Iterator[str]:
    """Yield the table as several tables of at most `most` columns width. Prose comes last, one line for each row."""
    end = len(lines[0]) - left_last
    at = left
    while at < end:
        take = end
        while take > at + 1 and max(map(len, _aligned(_some(lines, left, at, take), left, False))) > most:
            take -= 1
        yield from _aligned(_some(lines, left, at, take), left, False)
        at = take
        if at < end:
            yield ""
    if left_last:
        for line in lines[1:]:
            if line[-1].strip():
                name = "  ".join(cell for cell in line[:left] if cell)
                yield from wrap(f"{name}: {line[-1].strip()}", most, subsequent_indent=INDENT)


def _some(lines: Sequence[Row], left: int, start: int, stop: int) -> list[Row]:
    return [[*line[:left], *line[start:stop]] for line in lines]


def _paragraphs(lines: Sequence[Row], left: int, left_last: bool, most: int) -> Iterator[str]:
    """Yield each row as a paragraph: its first cells, then figures with the names of their columns, then prose."""
    heads, *rows = lines
    end = len(heads) - left_last
    for row in rows:
        named = row[:left]
        if not heads[0]:  # a row's number, or its name: the others say what they are
            named = [f"{head} {cell}".strip() if cell else "" for head, cell in zip(heads, named, strict=False)]
        yield from wrap("  ".join(filter(None, named)), most, subsequent_indent=INDENT)
        pairs = (f"{head} {cell}".strip() for head, cell in zip(heads[left:end], row[left:end], strict=True) if cell)
        yield from _joined(pairs, most)
        if left_last and row[-1].strip():
            yield from wrap(row[-1].strip(), most, initial_indent=INDENT, subsequent_indent=INDENT)


def _joined(pairs: Iterable[str], most: int) -> Iterator[str]:
    """Join `pairs` into lines of at most `most` characters. Only a pair that is longer than a line is broken."""
    line = ""
    for pair in pairs:
        if line and len(line) + 2 + len(pair) > most:
            yield line
            line = ""
        if len(INDENT) + len(pair) > most:
            yield from wrap(pair, most, initial_indent=INDENT, subsequent_indent=INDENT * 2)
            continue
        line = f"{line}  {pair}" if line else f"{INDENT}{pair}"
    if line:
        yield line
