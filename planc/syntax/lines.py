"""Splits a file into sentences, each of one or more lines. Comments are removed, but columns stay those of the file."""

from __future__ import annotations

import re
from collections.abc import Iterator

from planc.diag.fast_dataclass import dataclass
from planc.diag.span import Source, Span

VERBS = (
    *("plan", "layout", "hardware", "serve"),
    *("on", "import", "let", "model", "batch", "cluster", "mesh", "view"),
    *("shard", "replicate", "store", "gather", "split", "route", "attention.core", "optimizer"),
    *("freeze", "lora", "compute"),
    *("recompute", "quantize", "offload", "overlap", "compile", "loss", "realise", "use", "override", "target"),
    *("train", "price", "expect"),
    *("cache", "requests", "sync", "sleep"),
    *("chip", "link", "node", "network", "torus", "graph", "fabric", "points", "wire", "measured"),
)
HEADERS = VERBS[:4]
MACHINE = VERBS[-10:]
"""Verbs that declare a machine, in a hardware file or in the plan itself."""
OLD_VERBS = ("param", "attention")
"""Verbs of old spellings: `planc.syntax.old_spellings` says what they became."""

MOST_SENTENCES = 4_000
"""Sentences of a plan, those of its imports and layouts included."""
MOST_CHARACTERS = 200_000
"""Characters of a file's sentences, without comments and blank lines."""


@dataclass(frozen=True, slots=True)
class Shift:
    """An edit of a line: in row `row` (from 1), `length` characters replaced the columns from `column` to
    `end_column`."""

    row: int
    column: int
    end_column: int
    length: int

    def before(self, row: int, column: int) -> int:
        """Return the column that a position had before the edit, from its `row` and `column` after the edit."""
        if row != self.row or column <= self.column:
            return column
        return self.end_column + max(0, column - self.column - self.length)


@dataclass(frozen=True, slots=True)
class Line:
    """One logical line: its text without comments, the number of its first line in the file, and its comment.

    `shifts` are the edits, first to last, that turned the text in the file into `text`.
    """

    text: str
    number: int
    comment: str
    shifts: tuple[Shift, ...] = ()

    def place(self, row: int, column: int) -> tuple[int, int]:
        """Return the line and the column in the file of the character at `row` and `column` of the text, all from 1."""
        for shift in reversed(self.shifts):
            column = shift.before(row, column)
        return self.number + row - 1, column

    def span(self, source: Source) -> Span:
        """Return the span of the text in `source`, from its first word to its last."""
        lines = self.text.split("\n")
        first = len(lines[0]) - len(lines[0].lstrip()) + 1
        return Span(source.file, self.number, first, self.number + len(lines) - 1, len(lines[-1].rstrip()) + 1)


_TOKEN = re.compile(r'"[^"\n]*"|#[^\n]*|[()\[\]]')


def logical_lines(source: Source) -> Iterator[Line]:
    """Yield the sentences of `source` in order.

    A bracket that is open at the end of a line continues the sentence on the next line, unless that line starts with a
    verb in column 1.
    """
    pending: list[str] = []
    comments: list[str] = []
    depth = start = 0
    for number, raw in enumerate(source.lines, 1):
        text, comment, change = _without_comment(raw.rstrip("\r"))
        if pending and (depth <= 0 or _starts_sentence(text)):
            yield Line("\n".join(pending), start, " ".join(comments))
            pending, comments, depth = [], [], 0
        if text.strip() or pending:
            start = start if pending else number
            pending.append(text)
            depth += change
        if comment and pending:
            comments.append(comment)
    if pending:
        yield Line("\n".join(pending), start, " ".join(comments))


def too_many(lines: list[Line]) -> Line | None:
    """Return the first of a file's `lines` that exceeds the limits on sentences and characters; None if the file is
    within them."""
    characters = 0
    for number, line in enumerate(lines):
        characters += len(line.text)
        if number >= MOST_SENTENCES or characters > MOST_CHARACTERS:
            return line
    return None


def _without_comment(line: str) -> tuple[str, str, int]:
    """Return the text of a line, its comment, and the number of brackets that it opens and does not close."""
    depth = 0
    for match in _TOKEN.finditer(line):
        token = match.group()
        if token[0] == "#":
            return line[: match.start()].rstrip(), token, depth
        depth += (token in "([") - (token in ")]")
    return line.rstrip(), "", depth


def _starts_sentence(text: str) -> bool:
    return text[:1].isalpha() and text.split(maxsplit=1)[0].rstrip(":") in (*VERBS, *OLD_VERBS)
