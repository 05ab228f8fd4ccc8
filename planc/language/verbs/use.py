"""`use LAYOUT over AXES [as METHOD]`: includes the sentences of a layout, a file with axis names as parameters.

All `use` sentences are expanded before any sentence is read.
"""

from __future__ import annotations

from dataclasses import replace

from planc.language import library
from planc.language.draft import Draft
from planc.syntax import Tree
from planc.syntax.lines import MOST_SENTENCES
from planc.syntax.old_spellings import old_spelling
from planc.syntax.old_words import OLD_LAYOUTS
from planc.syntax.tree import Node, Sentence, Word

MAX_NESTING = 8
SCOPED = {"shard": "in", "replicate": "in", "store": "for"}
"""The keyword of the scope that `use ... for REGION` adds to a layout's sentence."""


def expand(sentences: list[Sentence], own: dict[str, Tree], draft: Draft, depth: int = 0) -> list[Sentence]:
    """Return `sentences` with every `use` replaced by the sentences of its layout. `own` has the imported layouts by
    name; `depth` counts nested layouts."""
    expanded: list[Sentence] = []
    for sentence in sentences:
        if sentence.verb == "use":
            expanded += _layout(sentence, own, draft, depth)
        else:
            expanded.append(sentence)
    return expanded


def _layout(use: Sentence, own: dict[str, Tree], draft: Draft, depth: int) -> list[Sentence]:
    if draft.free(use.node.parts[0], "the layout"):
        return []
    word = use.node.words("NAME")[0]
    if word.text in OLD_LAYOUTS and word.text not in own:
        new = OLD_LAYOUTS[word.text]
        draft.diagnostics.append(old_spelling(word.span, word.text, new, "one layout has one name"))
        word = replace(word, text=new)
    name = draft.one_of(word, [*own, *library.layouts()], "a layout")
    if name is None:
        return []
    if depth >= MAX_NESTING:
        draft.report("E0111", use.span, f"layouts use each other more than {MAX_NESTING} deep")
        return []
    layout = own.get(name) or library.layout_file(name)
    names = _replacements(layout, use, draft)
    if names is None or _too_many(layout, use, draft):
        return []
    written = [_with_scope(s.renamed(names, use.via or use), use) for s in layout.sentences]
    return expand(written, own, draft, depth + 1)


def _too_many(layout: Tree, use: Sentence, draft: Draft) -> bool:
    """True if the layouts expand to more sentences than the limit. This is reported once."""
    before, written = draft.written, len(layout.sentences) * max(1, len(use.names(0)))
    draft.written += written
    if before <= MOST_SENTENCES < draft.written:
        place = use.via or use
        draft.report(
            "E0117",
            place.span,
            f"layouts write {draft.written:,} sentences up to here, too many to check",
            help=f"at most {MOST_SENTENCES:,}; a sentence counts as often as the `use` that writes it names axes",
        )
    return draft.written > MOST_SENTENCES


def _with_scope(sentence: Sentence, use: Sentence) -> Sentence:
    """Return `sentence` restricted to the region in `use ... for REGION`, unless it already names one or its verb takes
    none."""
    scope = use.node.node("for")
    if scope is None or sentence.verb not in SCOPED or sentence.node.node("in", "for"):
        return sentence
    scope = replace(scope, kind=SCOPED[sentence.verb])
    node = replace(sentence.node, parts=(*sentence.node.parts, scope))
    names = ", ".join(w.text for w in scope.nodes("names")[0].words())
    return replace(sentence, node=node, text=f"{sentence.text} {scope.kind} {names}")


def _replacements(layout: Tree, use: Sentence, draft: Draft) -> dict[str, list[Node | Word]] | None:
    """Return the plan's axes that replace each axis name of the layout. The axis of a layout with only one may become
    several. None (reported) if the numbers of axes do not match."""
    assert layout.header is not None
    formal = [w.text for w in layout.header.names(0)]
    actual = use.names(0)
    if len(formal) != len(actual) and len(formal) != 1:
        draft.report(
            "E0108",
            use.span,
            f"layout `{use.node.words('NAME')[0].text}` stands over {len(formal)} axes"
            f" ({', '.join(formal)}); {len(actual)} are given",
            help=f"write `use {use.node.words('NAME')[0].text} over {', '.join(formal)}` with these axes in the mesh",
        )
        return None
    names: dict[str, list[Node | Word]] = {formal[0]: [*actual]}
    if len(formal) > 1:
        names = {f: [a] for f, a in zip(formal, actual, strict=True)}
    return names | _method(layout, use, draft)


def _method(layout: Tree, use: Sentence, draft: Draft) -> dict[str, list[Node | Word]]:
    """Return the value of the layout's method parameter, by name: {`schedule`: METHOD, and its arguments} if its header
    is `layout pp over pp as schedule = 1f1b`, which also gives the default."""
    assert layout.header is not None
    words = layout.header.node.words("NAME", "METHOD")
    given = use.node.node("method")
    if len(words) < 3:
        if given is not None:
            draft.report("E0108", given.span, f"layout `{words[0].text}` takes no `as`", help="leave it out")
        return {}
    return {words[1].text: [*given.parts] if given else [replace(words[2], span=use.span)]}
