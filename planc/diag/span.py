"""Positions in a plan file. Lines and columns are 1-based code points; ends are exclusive."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """A range of text in one file, from (`line`, `column`) up to but not including the end."""

    file: str
    line: int
    column: int
    end_line: int
    end_column: int

    @property
    def empty(self) -> bool:
        """True for the span of a diagnostic about a whole file, which marks no text."""
        return (self.line, self.column) == (self.end_line, self.end_column)

    def to(self, other: Span) -> Span:
        """Return the span from the start of this one to the end of `other`, in the same file."""
        assert self.file == other.file
        return Span(self.file, self.line, self.column, other.end_line, other.end_column)

    def where(self) -> str:
        """Return the start of the span as `FILE:LINE:COLUMN`."""
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class Source:
    """The text of one file, kept so that a diagnostic can quote it."""

    file: str
    text: str
    lines: tuple[str, ...] = field(default=(), compare=False)

    @classmethod
    def of(cls, file: str, text: str) -> Source:
        """Return a source with the lines of `text`. `file` is the file's name in diagnostics."""
        return cls(file, text, tuple(text.split("\n")))

    def line(self, number: int) -> str:
        """Return the text of line `number`, counted from 1. The text is empty if the file has no such line."""
        return self.lines[number - 1].rstrip("\r") if 1 <= number <= len(self.lines) else ""

    def quote(self, span: Span) -> str:
        """Return the text that `span` covers, on one line. If the span has several lines, spaces join them."""
        if span.line == span.end_line:
            return self.line(span.line)[span.column - 1 : span.end_column - 1]
        first = self.line(span.line)[span.column - 1 :]
        rest = [self.line(n) for n in range(span.line + 1, span.end_line)]
        return " ".join([first, *rest, self.line(span.end_line)[: span.end_column - 1]])
