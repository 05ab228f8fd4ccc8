"""What a plan file leaves free, and the file with it filled in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

from planc.diag.fast_dataclass import dataclass
from planc.diag.span import Span
from planc.syntax import File
from planc.syntax.tree import Node, Sentence, Word

Kind = Literal["size", "sequences", "microbatch", "layout", "schedule", "recompute"]


@dataclass(frozen=True)
class Free:
    """One `?`: what is free, the axes that it is about, and where it stands."""

    kind: Kind
    axes: tuple[str, ...]
    span: Span


def free_in(file: File) -> tuple[Free, ...]:
    """Every `?` of a plan's own sentences, in their order."""
    return tuple(free for sentence in file.sentences for free in _in_sentence(sentence))


def _in_sentence(sentence: Sentence) -> Iterator[Free]:
    node = sentence.node
    if sentence.verb == "mesh":
        for factor in (f for group in node.nodes("factors") for f in group.nodes("factor")):
            yield from _at(factor.parts[1], "size", (factor.words()[0].text,))
    elif sentence.verb == "batch":
        yield from _at(node.parts[0], "sequences")
        yield from _at(node.parts[-1], "microbatch")
    elif sentence.verb == "use":
        yield from _at(node.parts[0], "layout", tuple(w.text for w in sentence.names(0)))
    elif sentence.verb == "recompute":
        yield from _at(node.parts[0], "recompute")
    elif sentence.verb == "split":
        for method in node.nodes("method"):
            yield from _at(method.parts[0], "schedule", (node.words("NAME")[1].text,))


def _at(part: Node | Word, kind: Kind, axes: tuple[str, ...] = ()) -> Iterator[Free]:
    if isinstance(part, Word) and part.kind == "FREE":
        yield Free(kind, axes, part.span)


def filled(text: str, values: Mapping[Span, str]) -> str:
    """The text with each `?` replaced. A span covers one `?` of one line."""
    lines = text.split("\n")
    for span in sorted(values, reverse=True):
        line = lines[span.line - 1]
        lines[span.line - 1] = line[: span.column - 1] + values[span] + line[span.end_column - 1 :]
    return "\n".join(lines)
