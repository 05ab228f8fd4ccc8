"""Text to sentences, each parsed on its own: one mistake never hides another."""

from __future__ import annotations

from typing import Any

from planc.diag.diagnostic import Diagnostic, Edit, Fix
from planc.diag.fast_dataclass import dataclass
from planc.diag.span import Source, Span
from planc.syntax.lines import HEADERS, VERBS, Line, logical_lines
from planc.syntax.suggest import nearest
from planc.syntax.tree import Node, Sentence, Word

MAX_DEPTH = 60
MAX_SENTENCE = 20_000


@dataclass(frozen=True, slots=True)
class File:
    """A parsed file: its header (None if that was wrong), its sentences, and what went wrong."""

    source: Source
    header: Sentence | None
    sentences: tuple[Sentence, ...]
    diagnostics: tuple[Diagnostic, ...]


def parse_text(text: str, file: str) -> File:
    """Parse one file. Never raises for what is written in it; every mistake is a diagnostic."""
    source = Source.of(file, text)
    sentences: list[Sentence] = []
    mistakes: list[Diagnostic] = []
    for line in logical_lines(source):
        parsed = _sentence(source, line, first=not sentences and not mistakes)
        (sentences if isinstance(parsed, Sentence) else mistakes).append(parsed)  # type: ignore[arg-type]
    header = sentences[0] if sentences and sentences[0].verb in HEADERS else None
    if header is None and not _meant_header(source):
        mistakes += _headless(source, bool(sentences or mistakes))
    body = tuple(s for s in sentences if s is not header)
    return File(source, header, body, tuple(mistakes))


def _meant_header(source: Source) -> bool:
    """Whether the first sentence is a header with a mistake of its own, which is reported."""
    line = next(logical_lines(source), None)
    word = line.text.split(maxsplit=1)[0] if line is not None else ""
    return word in HEADERS or (word not in VERBS and bool(nearest(word, HEADERS, 1)))


def _headless(source: Source, anything: bool) -> list[Diagnostic]:
    start = Span(source.file, 1, 1, 1, 1)
    if not anything:
        return [
            Diagnostic(
                "E0106",
                "the file holds no sentence",
                start,
                help="a plan begins with `plan NAME`",
            )
        ]
    fix = Fix("begin the file with a header", (Edit(start, "plan unnamed\n"),))
    return [
        Diagnostic(
            "E0106",
            "the file does not begin with a header",
            start,
            help="begin with `plan NAME`, `layout NAME over AXES` or `hardware NAME`",
            fix=fix,
        )
    ]


def _sentence(source: Source, line: Line, *, first: bool) -> Sentence | Diagnostic:
    span = line.span(source)
    verb = line.text.split(maxsplit=1)[0]
    if verb not in VERBS:
        return _unknown_verb(source, line, verb)
    if verb in HEADERS and not first:
        return Diagnostic("E0107", f"a second header, `{verb}`", span, help="one file, one header")
    if len(line.text) > MAX_SENTENCE:
        return Diagnostic("E0102", f"a sentence of {len(line.text)} characters (at most {MAX_SENTENCE})", span)
    from lark.exceptions import UnexpectedInput

    from planc.syntax.tables import parser

    try:
        tree = parser().parse(line.text, start="header" if verb in HEADERS else "sentence")
    except UnexpectedInput as error:
        from planc.syntax.words import explain

        return explain(error, source, line, verb)
    return _finished(source, line, tree, span)


def _finished(source: Source, line: Line, tree: Any, span: Span) -> Sentence | Diagnostic:
    try:
        node = _node(tree, source.file, line.number - 1, span, 0)
    except RecursionError:
        return Diagnostic("E0102", f"brackets or sums nested more than {MAX_DEPTH} deep", span)
    text = " ".join(line.text.split())
    target = ""
    if node.kind == "on":
        target = node.words()[0].text
        inner = node.parts[-1]
        assert isinstance(inner, Node)
        node = inner
    return Sentence(node.kind, node, text, span, target)


def _node(tree: Any, file: str, offset: int, span: Span, depth: int) -> Node:
    """The parser's tree as ours. Raises RecursionError beyond MAX_DEPTH."""
    from lark import Token

    if depth > MAX_DEPTH:
        raise RecursionError
    parts: list[Node | Word] = []
    for child in tree.children:
        if isinstance(child, Token):
            parts.append(Word(child.type, str(child), _span(child, file, offset)))
        else:
            parts.append(_node(child, file, offset, span, depth + 1))
    meta = tree.meta
    here = span if meta.empty else _span(meta, file, offset)
    return Node(str(tree.data), tuple(parts), here)


def _span(mark: Any, file: str, offset: int) -> Span:
    return Span(file, mark.line + offset, mark.column, mark.end_line + offset, mark.end_column)


def _unknown_verb(source: Source, line: Line, verb: str) -> Diagnostic:
    span = line.span(source)
    place = Span(span.file, span.line, span.column, span.line, span.column + len(verb))
    shown = verb if len(verb) <= 40 else verb[:37] + "..."
    near = nearest(verb, VERBS)
    return Diagnostic(
        "E0101",
        f"`{shown}` is not a verb of the language",
        place,
        label="a sentence begins with a verb",
        help=f"did you mean `{near[0]}`?" if near else f"verbs: {', '.join(VERBS[3:])}",
        fix=Fix(f"write `{near[0]}`", (Edit(place, near[0]),)) if near else None,
    )
