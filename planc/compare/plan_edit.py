"""Replace one sentence in the text of a plan file."""

from __future__ import annotations

from pathlib import Path

from planc.files import MAX_TEXT_BYTES, read_text
from planc.syntax import Sentence, parse_text


class NotWrittenError(ValueError):
    """The text of the plan file cannot be changed as requested."""


def own_sentence(text: str, verb: str) -> Sentence:
    """Return the sentence of `verb` for all targets in the plan `text`. Raises NotWrittenError if there is none."""
    for sentence in parse_text(text, "").sentences:
        if sentence.verb == verb and not sentence.target:
            return sentence
    raise NotWrittenError(f"the file has no `{verb}` sentence of its own to change")


def rewritten(text: str, verb: str, rest: str) -> str:
    """Return the plan `text` with the sentence of `verb` replaced by `verb rest`."""
    span = own_sentence(text, verb).span
    lines = text.split("\n")
    head = lines[span.line - 1][: span.column - 1]
    tail = lines[span.end_line - 1][span.end_column - 1 :]
    lines[span.line - 1 : span.end_line] = [f"{head}{verb:<9} {rest}{tail}"]
    return "\n".join(lines)


def read(path: Path) -> str:
    """Return the text of the plan file at `path`. Raises OSError, or NotWrittenError if it is not text."""
    try:
        return read_text(path, MAX_TEXT_BYTES)
    except ValueError as error:
        raise NotWrittenError(f"{path} is not text") from error
