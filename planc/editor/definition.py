"""Go to definition: the declaration of an axis, number, layout, machine, chip or link, or a file itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from planc.diag.span import Span
from planc.editor.opened import Opened, word_at
from planc.language import library
from planc.language.verbs.hardware import declared_name
from planc.syntax import Tree
from planc.syntax.tree import Sentence, Word

Declared = tuple[str, str, Span]
"""Kind, name, location."""

KINDS = {
    "an axis": ("axis",),
    "a number that": ("let",),
    "a layout": ("layout",),
    "a node or torus": ("node", "torus", "graph"),
    "a chip": ("chip",),
    "a link": ("link",),
}
"""Kinds of declaration, by the readers' description of a looked-up name (its first words)."""


def definition(opened: Opened, line: int, column: int) -> tuple[Path, Span] | None:
    """Return the file and span that declare the name at `line` and `column` (1-based code points); None for no name."""
    sentence = opened.sentence_at(line)
    word = word_at(sentence, line, column) if sentence else None
    if sentence is None or word is None:
        return None
    if word.kind == "STRING" and sentence.verb in ("import", "model_from"):
        return _file(opened, word)
    lookup = opened.lookups_by_span.get(word.span)
    kinds = next((k for what, k in KINDS.items() if lookup and lookup.what.startswith(what)), None)
    if lookup is not None and kinds is None:
        return None
    found = next(
        (d for d in _visible_declarations(opened, word) if d[1] == word.text and (kinds is None or d[0] in kinds)), None
    )
    return (opened.where(found[2].file), found[2]) if found else None


def _file(opened: Opened, word: Word) -> tuple[Path, Span] | None:
    path = opened.path.parent / word.text.strip('"')
    try:
        there = path.is_file()
    except (OSError, ValueError):
        there = False
    return (path, Span(path.name, 1, 1, 1, 1)) if there else None


def _visible_declarations(opened: Opened, word: Word) -> Iterator[Declared]:
    """Yield the declarations that are visible at `word`: in this file, its imports, and the bundled library."""
    for file in opened.files():
        yield from declarations(file)
    if word.text in library.layouts():
        yield from declarations(library.layout_file(word.text))
    if word.text in library.machines():
        yield from declarations(library.hardware_file(library.machines()[word.text]))


def declarations(file: Tree) -> Iterator[Declared]:
    """Yield the declarations in the sentences of `file`, in order."""
    if file.header is not None and file.header.verb == "layout":
        words = file.header.node.words("NAME")
        yield "layout", words[0].text, words[0].span
        yield from (("axis", w.text, w.span) for w in (*file.header.names(0), *words[1:2]))
    for sentence in file.sentences:
        yield from declared(sentence)


def declared(sentence: Sentence) -> Iterator[Declared]:
    """Yield the declarations in one `sentence`."""
    if sentence.verb in ("mesh", "view"):
        for factor in sentence.factors():
            word = factor.words()[0]
            yield "axis", word.text, word.span
    elif sentence.verb == "let":
        word = sentence.node.words("NAME")[0]
        yield "let", word.text, word.span
    elif sentence.verb in ("chip", "link", "node", "torus", "network", "graph", "fabric"):
        call = sentence.node.node("call") if sentence.verb != "fabric" else None
        yield sentence.verb, declared_name(sentence), (call or sentence.node).words()[0].span
