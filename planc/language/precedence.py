"""Resolves conflicts between sentences. A sentence of the plan overrides a sentence of a layout about the same dim or
state, which is reported as a note. Two layouts that shard the same dim are an error."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from planc.diag.diagnostic import Edit, Fix, Related
from planc.diag.span import Span
from planc.language.draft import Draft
from planc.syntax.tree import Node, Sentence

Subject = tuple[str, str, str]
"""Verb, dim or noun, and region that a sentence decides."""


def settle(sentences: list[Sentence], draft: Draft) -> list[Sentence]:
    """Return the `sentences` that apply: the plan's own sentences override those of its layouts.

    Reports N0110 for a sentence that is overridden, and E0110 for two sentences that contradict each other.
    """
    explicit = {subject: s for s in sentences if s.via is None for subject in subjects(s)}
    kept: list[Sentence] = []
    seen: dict[Subject, Sentence] = {}
    for sentence in sentences:
        beaten = [s for s in subjects(sentence) if sentence.via is not None and s in explicit]
        for subject in beaten:
            _note_overridden(sentence, explicit[subject], subject, draft)
        remaining = without_subjects(sentence, {name for _, name, _ in beaten})
        if remaining is not None:
            _contradictions(remaining, seen, draft)
            kept.append(remaining)
    return kept


def subjects(sentence: Sentence) -> Iterator[Subject]:
    """Yield (verb, dim or kind of state, region) for each decision of `sentence`, a `shard` or `store`; nothing for
    other verbs."""
    if sentence.verb not in ("shard", "store"):
        return
    scope = sentence.node.node("in", "for")
    regions = [w.text for w in scope.nodes("names")[0].words()] if scope else [""]
    for word in sentence.names(0):
        for region in regions:
            yield sentence.verb, word.text, region


def _contradictions(sentence: Sentence, seen: dict[Subject, Sentence], draft: Draft) -> None:
    for subject in subjects(sentence):
        first = seen.setdefault(subject, sentence)
        if first is sentence:
            continue
        where, other = sentence.via or sentence, first.via or first
        draft.report(
            "E0110",
            where.span,
            f"`{subject[1]}` is laid out twice: {first.text} / {sentence.text}",
            related=(Related(other.span, "first here"),),
            help="keep one, or name all axes in one sentence",
            fix=Fix("remove this sentence", (Edit(whole_line(where.span), ""),)),
        )
        return


def whole_line(span: Span) -> Span:
    """Return the span of the whole lines that `span` is on, including the last line break."""
    return Span(span.file, span.line, 1, span.end_line + 1, 1)


def _note_overridden(beaten: Sentence, winner: Sentence, subject: Subject, draft: Draft) -> None:
    assert beaten.via is not None
    draft.report(
        "N0110",
        winner.span,
        f"this overrides `{beaten.text}` of `{beaten.via.text}` for {subject[1]}",
        related=(Related(beaten.via.span, "the shorthand"),),
    )


def without_subjects(sentence: Sentence, names: set[str]) -> Sentence | None:
    """Return the `shard`, `replicate` or `store` sentence without the dims or kinds of state in `names`; None if none
    remains."""
    if not names:
        return sentence
    lists = sentence.node.nodes("names")
    left = tuple(w for w in lists[0].words() if w.text not in names)
    if not left:
        return None
    first = Node("names", left, lists[0].span)
    parts = tuple(first if p is lists[0] else p for p in sentence.node.parts)
    said, kept = (", ".join(w.text for w in words) for words in (lists[0].words(), left))
    node = Node(sentence.node.kind, parts, sentence.node.span)
    return replace(sentence, node=node, text=sentence.text.replace(said, kept, 1))
