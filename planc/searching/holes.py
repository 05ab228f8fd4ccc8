"""Finds what a plan file leaves to the search (`?`, and axes in any order), and fills values in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from planc.diag.fast_dataclass import dataclass
from planc.diag.span import Span
from planc.language.draft import Draft
from planc.language.verbs import let
from planc.syntax import Tree, parse_text
from planc.syntax.tree import Node, Sentence, Word

Kind = Literal["order", "size", "sequences", "microbatch", "layout", "schedule", "chunks", "recompute", "loss"]


@dataclass(frozen=True)
class Free:
    """A `?` in a plan file, or axes separated by commas, whose order is left to the search. `kind` is the kind of the
    missing value, `axes` are the mesh axes concerned, and `span` is the location in the file."""

    kind: Kind
    axes: tuple[str, ...]
    span: Span


def free_in(file: Tree) -> tuple[Free, ...]:
    """Return every `?` and open axis order in the sentences of `file`, in order. Imported files may have none."""
    return tuple(free for sentence in file.sentences for free in _in_sentence(sentence))


def _in_sentence(sentence: Sentence) -> Iterator[Free]:
    node = sentence.node
    if sentence.verb in ("mesh", "view"):
        for group in sentence.any_order():
            yield Free("order", tuple(name for name, _ in _sized(group.nodes("factor"))), group.span)
        for name, size in _sized(sentence.factors()):
            yield from _hole_at(size, "size", (name,))
    elif sentence.verb == "batch":
        yield from _hole_at(node.parts[0], "sequences")
        yield from _hole_at(node.parts[-1], "microbatch")
    elif sentence.verb == "use":
        yield from _hole_at(node.parts[0], "layout", tuple(w.text for w in sentence.names(0)))
        if isinstance(node.parts[0], Word) and node.parts[0].text == "pp":
            yield from _in_schedule(node, tuple(w.text for w in sentence.names(0)))
    elif sentence.verb == "recompute":
        yield from _hole_at(node.parts[0], "recompute")
    elif sentence.verb == "loss":
        yield from _hole_at(node.parts[-1], "loss")
    elif sentence.verb == "split":
        yield from _in_schedule(node, (node.words("NAME")[1].text,))


def _in_schedule(node: Node, axes: tuple[str, ...]) -> Iterator[Free]:
    """Yield the `?` after the `as` of a pipeline: its schedule, or the schedule's chunks."""
    for method in node.nodes("method"):
        yield from _hole_at(method.parts[0], "schedule", axes)
        for named in (named for args in method.nodes("args") for named in args.nodes("named")):
            yield from _hole_at(named.parts[1], "chunks", axes)


def written_sizes(file: Tree, given: Mapping[str, int]) -> dict[str, int | None]:
    """Return the number of devices along each axis of the mesh and its views in `file`; None for `?` or an invalid
    size.

    `given` has values that replace those of `let` sentences, by name.
    """
    draft = Draft(given=dict(given))
    for sentence in file.sentences:
        if sentence.verb in let.VERBS:
            let.read(sentence, draft)
    return {
        name: None if isinstance(size, Word) and size.kind == "FREE" else draft.integer(size)
        for sentence in _meshes(file)
        for name, size in _sized(sentence.factors())
    }


def sizes_inside_views(file: Tree) -> tuple[Span, ...]:
    """Return the locations in `file` of axis sizes that depend on each other: those of a view and of the mesh axes that
    it factorizes, if any of them is `?`."""
    views = [s for s in file.sentences if s.verb == "view"]
    sizes = {name: size for s in _meshes(file) for name, size in _sized(s.factors())}
    spans: list[Span] = []
    for view in views:
        names = [name for name, _ in _sized(view.factors())] + [word.text for word in view.names(0)]
        tied = [sizes[name] for name in names if name in sizes]
        if any(isinstance(size, Word) and size.kind == "FREE" for size in tied):
            spans += [size.span for size in tied]
    return tuple(dict.fromkeys(spans))


def covered_by_views(file: Tree) -> tuple[tuple[str, ...], ...]:
    """Return the mesh axes that each view of `file` factorizes into other axes."""
    return tuple(tuple(word.text for word in s.names(0)) for s in file.sentences if s.verb == "view")


def _meshes(file: Tree) -> list[Sentence]:
    return [s for s in file.sentences if s.verb in ("mesh", "view")]


def _sized(factors: list[Node]) -> list[tuple[str, Node | Word]]:
    return [(f.words()[0].text, f.parts[1]) for f in factors]


def _hole_at(part: Node | Word, kind: Kind, axes: tuple[str, ...] = ()) -> Iterator[Free]:
    if isinstance(part, Word) and part.kind == "FREE":
        yield Free(kind, axes, part.span)


def filled(text: str, values: Mapping[Span, str]) -> str:
    """Return `text` with the text at each location in `values` replaced. Locations must not overlap."""
    lines = text.split("\n")
    for span in sorted(values, reverse=True):
        head, tail = lines[span.line - 1][: span.column - 1], lines[span.end_line - 1][span.end_column - 1 :]
        lines[span.line - 1 : span.end_line] = [head + values[span] + tail]
    return "\n".join(lines)


def ordered(text: str, names: Sequence[str]) -> str:
    """Return `text` with its comma-separated axes in the order of `names`, outermost first, separated by `>`."""
    file = parse_text(text, "")
    groups = {group.span: group.nodes("factor") for s in _meshes(file) for group in s.any_order()}
    return filled(text, {span: " > ".join(_texts_in(file, factors, names)) for span, factors in groups.items()})


def _texts_in(file: Tree, factors: list[Node], names: Sequence[str]) -> Iterator[str]:
    """Yield "NAME SIZE" of each axis, as written in `file`, in the order of `names`."""
    for factor in sorted(factors, key=lambda f: names.index(f.words()[0].text)):
        at = factor.span
        lines = [*file.source.lines[at.line - 1 : at.end_line]]
        lines[-1] = lines[-1][: at.end_column - 1]
        lines[0] = lines[0][at.column - 1 :]
        yield "\n".join(lines)
