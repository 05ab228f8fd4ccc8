"""Types of a parsed sentence: nodes and words with their spans, independent of the parser library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from planc.diag.fast_dataclass import dataclass
from planc.diag.span import Span


@dataclass(frozen=True, slots=True)
class Word:
    """A terminal: its kind in the grammar, its text and its span (file, line and columns)."""

    kind: str
    text: str
    span: Span


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the syntax tree: its grammar rule (`kind`), its children (`parts`), and its span."""

    kind: str
    parts: tuple[Node | Word, ...]
    span: Span

    def nodes(self, kind: str) -> list[Node]:
        """Return the children of this node that are nodes of `kind`, a rule of the grammar."""
        return [p for p in self.parts if isinstance(p, Node) and p.kind == kind]

    def leaves(self, kind: str) -> list[Node]:
        """Return the nodes of `kind` below this node at any depth, in order. Nodes below such a node are not
        searched."""
        found: list[Node] = []
        for part in self.parts:
            if isinstance(part, Node):
                found += [part] if part.kind == kind else part.leaves(kind)
        return found

    def node(self, *kinds: str) -> Node | None:
        """Return the first child of this node that is a node of one of these `kinds`; None if there is none."""
        return next((p for p in self.parts if isinstance(p, Node) and p.kind in kinds), None)

    def words(self, *kinds: str) -> list[Word]:
        """Return the children of this node that are words: of these `kinds`, or all words if none are given."""
        return [p for p in self.parts if isinstance(p, Word) and (not kinds or p.kind in kinds)]

    def all_words(self) -> Iterator[Word]:
        """Yield every word below this node at any depth, in order."""
        for part in self.parts:
            if isinstance(part, Word):
                yield part
            else:
                yield from part.all_words()


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence of a plan. `target` is cuda or xla after `on TARGET:`, else "". `via` is the `use` sentence whose
    layout contains this sentence; None if the plan file itself contains it."""

    verb: str
    node: Node
    text: str
    span: Span
    target: str = ""
    via: Sentence | None = None

    def names(self, index: int = 0) -> list[Word]:
        """Return the words of the sentence's list of names number `index` (from 0); [] if there is no such list."""
        lists = self.node.nodes("names")
        return lists[index].words() if index < len(lists) else []

    def factors(self) -> list[Node]:
        """Return the axes of a `mesh` or `view` sentence with their sizes, in the order of the text; [] for any other
        sentence."""
        group = self.node.node("factors")
        return group.leaves("factor") if group else []

    def any_order(self) -> list[Node]:
        """Return the groups of axes that a `mesh` or `view` sentence separates by commas: `planc search` orders
        them."""
        group = self.node.node("factors")
        return group.nodes("any_order") if group else []

    def renamed(self, names: Mapping[str, Sequence[Node | Word]], via: Sentence) -> Sentence:
        """Return this sentence with other names: `names` maps a name, such as a layout's axis, to the words that
        replace it, and the arguments of a method. They keep their spans. The sentence gets the span of `via`."""
        node = _renamed(self.node, names)
        words = self.text.split(" ")
        text = " ".join(_rename_text(w, names, via.text) for w in words)
        return replace(self, node=node, text=text, span=via.span, via=via)


def _renamed(node: Node, names: Mapping[str, Sequence[Node | Word]]) -> Node:
    parts: list[Node | Word] = []
    for part in node.parts:
        if isinstance(part, Node):
            parts.append(_renamed(part, names))
        elif part.text in names:
            parts += names[part.text]
        else:
            parts.append(part)
    return replace(node, parts=tuple(parts))


def _rename_text(word: str, names: Mapping[str, Sequence[Node | Word]], via: str) -> str:
    """Return a `word` of a sentence's text with other names; arguments are written as in `via`, after its `as`."""
    bare = word.rstrip(",")
    if bare not in names:
        return word
    texts = [w.text for w in names[bare] if isinstance(w, Word)]
    args = "(" + via.partition("(")[2].rpartition(")")[0] + ")" if len(texts) < len(names[bare]) else ""
    return ", ".join(texts) + args + word[len(bare) :]
