"""Free places of a plan file, and the file with values in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

from planc.diag.fast_dataclass import dataclass
from planc.diag.span import Span
from planc.language.draft import Draft
from planc.language.verbs import let
from planc.syntax import Tree
from planc.syntax.tree import Node, Sentence, Word

Kind = Literal["size", "sequences", "microbatch", "layout", "schedule", "recompute"]


@dataclass(frozen=True)
class Free:
    """One `?`: what is free, the axes that it is about, and where it stands."""

    kind: Kind
    axes: tuple[str, ...]
    span: Span


def free_in(file: Tree) -> tuple[Free, ...]:
    """Every `?` of the own sentences of a plan file (`file`), in their order."""
    return tuple(free for sentence in file.sentences for free in _in_sentence(sentence))


def _in_sentence(sentence: Sentence) -> Iterator[Free]:
    node = sentence.node
    if sentence.verb in ("mesh", "view"):
        for name, size in _factors(sentence):
            yield from _hole_at(size, "size", (name,))
    elif sentence.verb == "batch":
        yield from _hole_at(node.parts[0], "sequences")
        yield from _hole_at(node.parts[-1], "microbatch")
    elif sentence.verb == "use":
        yield from _hole_at(node.parts[0], "layout", tuple(w.text for w in sentence.names(0)))
    elif sentence.verb == "recompute":
        yield from _hole_at(node.parts[0], "recompute")
    elif sentence.verb == "split":
        for method in node.nodes("method"):
            yield from _hole_at(method.parts[0], "schedule", (node.words("NAME")[1].text,))


def written_sizes(file: Tree, given: Mapping[str, int]) -> dict[str, int | None]:
    """Number of devices on each axis of the mesh and its views as `file` says it; None where it is free or mistaken.

    `given` are values of `let` numbers that replace the file's.
    """
    draft = Draft(given=dict(given))
    for sentence in file.sentences:
        if sentence.verb in let.VERBS:
            let.read(sentence, draft)
    return {
        name: None if isinstance(size, Word) and size.kind == "FREE" else draft.integer(size)
        for sentence in file.sentences
        if sentence.verb in ("mesh", "view")
        for name, size in _factors(sentence)
    }


def sizes_inside_views(file: Tree) -> tuple[Span, ...]:
    """Places of sizes that a view with something free ties together, in `file`: its own, and those of the axes that it
    covers."""
    views = [s for s in file.sentences if s.verb == "view"]
    sizes = {name: size for s in file.sentences if s.verb in ("mesh", "view") for name, size in _factors(s)}
    spans: list[Span] = []
    for view in views:
        names = [name for name, _ in _factors(view)] + [word.text for word in view.names(0)]
        tied = [sizes[name] for name in names if name in sizes]
        if any(isinstance(size, Word) and size.kind == "FREE" for size in tied):
            spans += [size.span for size in tied]
    return tuple(dict.fromkeys(spans))


def _factors(sentence: Sentence) -> list[tuple[str, Node | Word]]:
    """Name and size of each axis of a `mesh` or `view` sentence."""
    group = sentence.node.node("factors")
    return [(f.words()[0].text, f.parts[1]) for f in group.nodes("factor")] if group else []


def _hole_at(part: Node | Word, kind: Kind, axes: tuple[str, ...] = ()) -> Iterator[Free]:
    if isinstance(part, Word) and part.kind == "FREE":
        yield Free(kind, axes, part.span)


def filled(text: str, values: Mapping[Span, str]) -> str:
    """The `text` with each `?` replaced by its value in `values`. A span covers one `?` of one line."""
    lines = text.split("\n")
    for span in sorted(values, reverse=True):
        line = lines[span.line - 1]
        lines[span.line - 1] = line[: span.column - 1] + values[span] + line[span.end_column - 1 :]
    return "\n".join(lines)
