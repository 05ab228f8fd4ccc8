"""Parses a text to sentences. Each sentence is parsed on its own, so one mistake never hides another.

If a mistake has an edit that fixes it, the sentence is read as if the edit had been applied.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from threading import Lock
from typing import Any

from planc.diag.diagnostic import Diagnostic, Edit, Fix
from planc.diag.fast_dataclass import dataclass
from planc.diag.span import Source, Span
from planc.syntax.lines import (
    HEADERS,
    MOST_CHARACTERS,
    MOST_SENTENCES,
    OLD_VERBS,
    VERBS,
    Line,
    Shift,
    logical_lines,
    too_many,
)
from planc.syntax.old_spellings import modernized
from planc.syntax.suggest import MOST_GUESSES, nearest, spelling_fix
from planc.syntax.tree import Node, Sentence, Word

MAX_DEPTH = 60
MAX_SENTENCE = 20_000
MAX_FIXES = 4
"""Mistakes of one sentence that are mended to find the next."""


@dataclass(frozen=True, slots=True)
class Tree:
    """A parsed file: its header (None if the header has a mistake), its sentences, and the diagnostics.

    A sentence whose mistake has a fix is read with the fix applied, so that further mistakes in it are found too.
    """

    source: Source
    header: Sentence | None
    sentences: tuple[Sentence, ...]
    diagnostics: tuple[Diagnostic, ...]
    unread: tuple[str, ...] = ()
    """The texts of sentences that could not be parsed."""


_saved: dict[tuple[str, str], Tree] = {}
_lock = Lock()
MOST_SAVED = 1_000_000
"""Characters of the files whose trees are saved."""


def parse_text(text: str, file: str) -> Tree:
    """Parse `text`, the content of one file. Every mistake in it becomes a diagnostic; none raises an exception.

    `file` is the file name in the spans of diagnostics; nothing is read from disk. The trees of the last files are
    cached, because a command may read a plan and its imports once for each target.
    """
    with _lock:
        tree = _saved.pop((text, file), None)
        if tree is not None:
            _saved[text, file] = tree
            return tree
    tree = _parsed(text, file)
    with _lock:
        _saved[text, file] = tree
        over = sum(len(known) for known, _ in _saved) - MOST_SAVED
        for old in list(_saved)[:-1]:
            if over <= 0:
                break
            over -= len(old[0])
            del _saved[old]
    return tree


def _parsed(text: str, file: str) -> Tree:
    source = Source.of(file, text)
    lines = list(logical_lines(source))
    if (refused := _too_much(source, lines)) is not None:
        return Tree(source, None, (), (refused,))
    sentences: list[Sentence] = []
    found: list[Diagnostic] = []
    unread: list[str] = []
    for line in lines:
        sentence = _sentence(source, line, found, first=not sentences and not unread)
        if sentence is None:
            unread.append(line.text)
        else:
            sentences.append(sentence)
    header = sentences[0] if sentences and sentences[0].verb in HEADERS else None
    if header is None and not _meant_header(lines):
        found += _headless(source, bool(sentences or unread))
    body = tuple(s for s in sentences if s is not header)
    return Tree(source, header, body, tuple(found), tuple(unread))


def _too_much(source: Source, lines: list[Line]) -> Diagnostic | None:
    """Return E0117 at the first sentence beyond the limits on a file's size; None if the file is within the limits."""
    first = too_many(lines)
    if first is None:
        return None
    total = sum(len(line.text) for line in lines)
    return Diagnostic(
        "E0117",
        f"the file has {len(lines):,} sentences of {total:,} characters, too many to check",
        first.span(source),
        label="the first one too many",
        help=f"at most {MOST_SENTENCES:,} sentences and {MOST_CHARACTERS:,} characters, comments not counted",
    )


def _meant_header(lines: list[Line]) -> bool:
    """True if the first sentence seems to be a header that has a mistake, which is reported separately."""
    word = lines[0].text.split(maxsplit=1)[0] if lines else ""
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


def _sentence(source: Source, line: Line, found: list[Diagnostic], *, first: bool) -> Sentence | None:
    """Return the sentence of a line, perhaps after fixes; None if it cannot be parsed. Its mistakes are added to
    `found`.

    If several mistakes are found one after the other, the later ones are added only if all of them can be fixed:
    otherwise they may result from a wrong fix.
    """
    mistakes: list[Diagnostic] = []
    read, guess = line, len(found) < MOST_GUESSES
    for _ in range(MAX_FIXES):
        mistake = _mistake(source, read, first=first, guess=guess)
        if mistake is None:
            found += mistakes
            return _finished(source, line, read, found)
        mistakes.append(_at_original_place(mistake, read))
        mended = _mended(read, mistake.fix.edits[0]) if mistake.fix and len(mistake.fix.edits) == 1 else None
        if mended is None:
            break
        read = mended
    found.append(mistakes[0])
    return None


def _at_original_place(mistake: Diagnostic, line: Line) -> Diagnostic:
    """Return a diagnostic about an edited line, with its spans mapped back to the line in the file."""

    def original_span(span: Span) -> Span:
        begin = line.place(span.line - line.number + 1, span.column)
        return Span(span.file, *begin, *line.place(span.end_line - line.number + 1, span.end_column))

    if not line.shifts:
        return mistake
    fix = mistake.fix and replace(
        mistake.fix, edits=tuple(replace(e, span=original_span(e.span)) for e in mistake.fix.edits)
    )
    return replace(mistake, span=original_span(mistake.span), fix=fix)


def _mistake(source: Source, line: Line, *, first: bool, guess: bool) -> Diagnostic | None:
    """Return the first syntax mistake in a line; None if there is none. With `guess`, suggest a similar word."""
    span = line.span(source)
    verb = line.text.split(maxsplit=1)[0]
    if verb not in VERBS and verb not in OLD_VERBS:
        return _unknown_verb(source, line, verb, guess=guess)
    if verb in HEADERS and not first:
        return Diagnostic("E0107", f"a second header, `{verb}`", span, help="one file, one header")
    if len(line.text) > MAX_SENTENCE:
        return Diagnostic("E0102", f"a sentence of {len(line.text)} characters (at most {MAX_SENTENCE})", span)
    from lark.exceptions import UnexpectedInput

    try:
        _tree(line.text)
    except UnexpectedInput as error:
        from planc.syntax.words import explain

        return explain(error, source, line, verb, guess=guess)
    return None


@lru_cache(maxsize=4)
def _tree(text: str) -> Any:
    """Return the parser library's tree of one sentence. Raises UnexpectedInput for a syntax error."""
    from planc.syntax.tables import parser

    return parser().parse(text, start="header" if text.split(maxsplit=1)[0] in HEADERS else "sentence")


def _mended(line: Line, edit: Edit) -> Line | None:
    """Return the line with the `edit` applied; None if the edit is not within one row of the line."""
    rows = line.text.split("\n")
    row, begin, end = edit.span.line - line.number, edit.span.column, edit.span.end_column
    if edit.span.end_line != edit.span.line or not 0 <= row < len(rows):
        return None
    rows[row] = rows[row][: begin - 1].ljust(begin - 1) + edit.text + rows[row][end - 1 :]
    shift = Shift(row + 1, begin, end, len(edit.text))
    return replace(line, text="\n".join(rows), shifts=(*line.shifts, shift))


def _finished(source: Source, line: Line, read: Line, found: list[Diagnostic]) -> Sentence | None:
    """Return the sentence parsed from `read` (`line` after fixes), with the span of `line`; None if nested too deep."""
    span = line.span(source)
    spellings: list[Diagnostic] = []
    try:
        node = modernized(_node(_tree(read.text), source.file, read, span, 0), spellings)
    except RecursionError:
        found.append(Diagnostic("E0102", f"brackets or sums nested more than {MAX_DEPTH} deep", span))
        return None
    if read is line:
        found += spellings
    text = " ".join(read.text.split())
    target = ""
    if node.kind == "on":
        target = node.words()[0].text
        inner = node.parts[-1]
        assert isinstance(inner, Node)
        node = inner
    return Sentence(node.kind, node, text, span, target)


def _node(tree: Any, file: str, line: Line, span: Span, depth: int) -> Node:
    """Return the parser library's tree as a `Node`. Raises RecursionError if it is deeper than MAX_DEPTH."""
    from lark import Token

    if depth > MAX_DEPTH:
        raise RecursionError
    parts: list[Node | Word] = []
    for child in tree.children:
        if isinstance(child, Token):
            parts.append(Word(child.type, str(child), _span(child, file, line)))
        else:
            parts.append(_node(child, file, line, span, depth + 1))
    meta = tree.meta
    here = span if meta.empty else _span(meta, file, line)
    return Node(str(tree.data), tuple(parts), here)


def _span(mark: Any, file: str, line: Line) -> Span:
    begin, end = line.place(mark.line, mark.column), line.place(mark.end_line, mark.end_column)
    return Span(file, *begin, *end)


def _unknown_verb(source: Source, line: Line, verb: str, *, guess: bool) -> Diagnostic:
    span = line.span(source)
    place = Span(span.file, span.line, span.column, span.line, span.column + len(verb))
    shown = verb if len(verb) <= 40 else verb[:37] + "..."
    near = nearest(verb, VERBS) if guess else []
    rest = line.text.split()[1:2]
    end = line.text.index("core") + len("core") + 1 if near[:1] == ["attention.core"] and rest == ["core"] else 0
    edited = replace(place, end_column=end) if end and "\n" not in line.text else place
    return Diagnostic(
        "E0101",
        f"`{shown}` is not a verb of the language",
        place,
        label="a sentence begins with a verb",
        help=f"did you mean `{near[0]}`?" if near else f"verbs: {', '.join(VERBS[3:])}",
        fix=spelling_fix(edited, verb, VERBS) if near else None,
    )
