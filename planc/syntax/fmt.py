"""Formats a plan file in one way: verbs in a column, `over` in a column, comments in a column.

Only the space between words changes; comments, blank lines and the order of sentences stay. Formatting a second time
changes nothing, and the formatted text parses to the same sentences.
"""

from __future__ import annotations

import re

from planc.diag.fast_dataclass import dataclass
from planc.diag.span import Source
from planc.syntax.lines import HEADERS, VERBS, Line, logical_lines, too_many

VERB_WIDTH = 9
ALIGNED = ("shard", "store", "split", "use", "replicate", "gather")
"""Verbs whose `over` (or `per`) lines up while they follow each other."""

_PIECES = re.compile(r'"[^"\n]*"|\s+|[^\s"]+|"')


@dataclass(slots=True)
class FormattedLine:
    """A line of the formatted text: its code and its comment. `sentence` is True if it is one whole sentence."""

    code: str
    comment: str = ""
    sentence: bool = False


def format_text(text: str) -> str:
    """Return `text`, a plan file, as `planc fmt` formats it, with a line end after the last line. Sentences with
    mistakes are unchanged, and so is a text with more sentences than planc reads."""
    source = Source.of("", text)
    found = list(logical_lines(source))
    if too_many(found) is not None:
        return text
    rows = _rows(source, found)
    _align_over(rows)
    _align_comments(rows)
    lines = [f"{row.code}{row.comment}".rstrip() for row in rows]
    while lines and not lines[-1]:
        lines.pop()
    return "".join(line + "\n" for line in lines)


def _rows(source: Source, found: list[Line]) -> list[FormattedLine]:
    """Return every line of the text: one that is a whole sentence with new spaces between its words, others
    unchanged."""
    sentences = {line.number: line for line in found}
    rows, inside = [], 0
    for number, raw in enumerate(source.lines, 1):
        line = sentences.get(number)
        if line is not None and "\n" not in line.text and number > inside:
            rows.append(FormattedLine(_spaced(line.text), line.comment, sentence=True))
            continue
        if line is not None:
            inside = number + line.text.count("\n")
        rows.append(FormattedLine(raw.rstrip()))
    return rows


def _spaced(text: str) -> str:
    """Return the sentence with single spaces between its words, and with its verb padded to `VERB_WIDTH`."""
    pieces = [" " if p.isspace() else p for p in _PIECES.findall(text.strip())]
    verb, _, rest = "".join(pieces).partition(" ")
    if verb not in VERBS:
        return text.strip()
    if verb in HEADERS or not rest:
        return f"{verb} {rest}".rstrip()
    return f"{verb:<{VERB_WIDTH}} {rest}"


def _align_over(rows: list[FormattedLine]) -> None:
    """Align the first ` over ` or ` per ` of each group of adjacent sentences in one column."""
    block: list[FormattedLine] = []
    for row in [*rows, FormattedLine("")]:
        if row.sentence and row.code.split(maxsplit=1)[0] in ALIGNED and _split_at(row.code) > 0:
            block.append(row)
            continue
        _align_block(block)
        block = []


def _align_block(block: list[FormattedLine]) -> None:
    column = max((_split_at(row.code) for row in block), default=0)
    for row in block:
        at = _split_at(row.code)
        row.code = row.code[:at].ljust(column) + row.code[at:]


def _split_at(code: str) -> int:
    found = re.search(r" (over|per) ", code)
    return found.start() if found else 0


def _align_comments(rows: list[FormattedLine]) -> None:
    """Align the comments after sentences in one column, two spaces after the longest of these sentences."""
    commented = [row for row in rows if row.sentence and row.comment]
    column = max((len(row.code) for row in commented), default=0)
    for row in commented:
        row.code = row.code.ljust(column) + "  "
