"""A parsed sentence: nodes and words with their places, free of the parser library's types."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from planc.diag.fast_dataclass import dataclass
from planc.diag.span import Span


@dataclass(frozen=True, slots=True)
class Word:
    """A terminal: its kind in the grammar, its text and its place."""

    kind: str
    text: str
    span: Span


@dataclass(frozen=True, slots=True)
class Node:
    """A rule of the grammar with its parts."""

    kind: str
    parts: tuple[Node | Word, ...]
    span: Span

    def nodes(self, kind: str) -> list[Node]:
        """The parts that are nodes of `kind`, a rule of the grammar; of this node itself, not of nodes below it."""
        return [p for p in self.parts if isinstance(p, Node) and p.kind == kind]

    def leaves(self, kind: str) -> list[Node]:
        """The nodes of `kind` below this one, in order; not those below one another."""
        found: list[Node] = []
        for part in self.parts:
            if isinstance(part, Node):
                found += [part] if part.kind == kind else part.leaves(kind)
        return found

    def node(self, *kinds: str) -> Node | None:
        """The first part that is a node of one of these kinds."""
        return next((p for p in self.parts if isinstance(p, Node) and p.kind in kinds), None)

    def words(self, *kinds: str) -> list[Word]:
        """The parts that are words (of these kinds, if any are given)."""
        return [p for p in self.parts if isinstance(p, Word) and (not kinds or p.kind in kinds)]

    def all_words(self) -> Iterator[Word]:
        """Every word below this node, in order."""
        for part in self.parts:
            if isinstance(part, Word):
                yield part
            else:
                yield from part.all_words()


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence. `target` is cuda or xla when it was written after `on`.

    `via` is the sentence of the layout's `use` that wrote this one, with its place.
    """

    verb: str
    node: Node
    text: str
    span: Span
    target: str = ""
    via: Sentence | None = None

    def names(self, index: int = 0) -> list[Word]:
        """The words of the list of names at `index` (from 0) in the sentence; [] when it has fewer lists."""
        lists = self.node.nodes("names")
        return lists[index].words() if index < len(lists) else []

    def factors(self) -> list[Node]:
        """The axes with their sizes of a `mesh` or `view` sentence, as they are written; [] of any other sentence."""
        group = self.node.node("factors")
        return group.leaves("factor") if group else []

    def any_order(self) -> list[Node]:
        """The groups of `factors` that are written with commas: `planc search` finds their order."""
        group = self.node.node("factors")
        return group.nodes("any_order") if group else []

    def renamed(self, names: dict[str, list[Word]], via: Sentence) -> Sentence:
        """The same sentence with some names replaced (a layout's axes by the plan's).

        What replaces a name keeps its own place, and the whole stands where `via` does.
        """
        node = _renamed(self.node, names)
        words = self.text.split(" ")
        text = " ".join(_rename_text(w, names) for w in words)
        return replace(self, node=node, text=text, span=via.span, via=via)


def _renamed(node: Node, names: dict[str, list[Word]]) -> Node:
    parts: list[Node | Word] = []
    for part in node.parts:
        if isinstance(part, Node):
            parts.append(_renamed(part, names))
        elif part.text in names:
            parts += [replace(part, text=w.text, span=w.span) for w in names[part.text]]
        else:
            parts.append(part)
    return replace(node, parts=tuple(parts))


def _rename_text(word: str, names: dict[str, list[Word]]) -> str:
    bare = word.rstrip(",")
    return ", ".join(w.text for w in names[bare]) + word[len(bare) :] if bare in names else word
