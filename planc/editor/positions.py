"""Conversion of positions: planc counts code points from 1, the protocol code units from 0.

Lines differ too: planc's end at `\n` alone, the protocol's at `\n`, `\r\n` or `\r`. So every conversion goes through
the offset into the text.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property

from lsprotocol.types import Position, Range
from pygls.workspace.position_codec import PositionCodec

from planc.diag.span import Span

_ENDS = re.compile(r"\r\n|\n|\r")


@dataclass(frozen=True)
class Positions:
    """The positions in one text. `codec` counts the code units that the client negotiated (UTF-16)."""

    text: str
    codec: PositionCodec

    @cached_property
    def _client_starts(self) -> list[int]:
        return [0, *(m.end() for m in _ENDS.finditer(self.text))]

    @cached_property
    def _planc_starts(self) -> list[int]:
        return [0, *(m.end() for m in re.finditer("\n", self.text))]

    def offset_at(self, line: int, column: int) -> int:
        """Return the index in the text of `line` and `column` (1-based code points), at most the text's length."""
        if line > len(self._planc_starts):
            return len(self.text)
        return min(self._planc_starts[max(line, 1) - 1] + max(column, 1) - 1, len(self.text))

    def place_at(self, offset: int) -> tuple[int, int]:
        """Return the 1-based line and column, in code points, at index `offset` of the text."""
        line = bisect_right(self._planc_starts, offset)
        return line, offset - self._planc_starts[line - 1] + 1

    def position(self, offset: int) -> Position:
        """Return the client's position at index `offset` of the text."""
        line = bisect_right(self._client_starts, offset) - 1
        return Position(line, self.codec.client_num_units(self.text[self._client_starts[line] : offset]))

    def offset(self, position: Position) -> int:
        """Return the index in the text of the client's `position`: of its character, or the line's end if beyond it."""
        if position.line >= len(self._client_starts):
            return len(self.text)
        start = self._client_starts[position.line]
        end = _ENDS.search(self.text, start)
        units = 0
        for at in range(start, end.start() if end else len(self.text)):
            units += self.codec.client_num_units(self.text[at])
            if units > position.character:
                return at
        return end.start() if end else len(self.text)

    def range(self, span: Span) -> Range:
        """Return `span` as a range of the client."""
        start = self.offset_at(span.line, span.column)
        end = self.offset_at(span.end_line, span.end_column)
        return Range(self.position(start), self.position(max(start, end)))

    def whole(self) -> Range:
        return Range(Position(0, 0), self.position(len(self.text)))
