"""Completion: puts a placeholder name at the cursor, and proposes the names that the readers accept there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from planc.checks import rules
from planc.diag.span import Source
from planc.editor.opened import EditorSettings, Opened, names_in
from planc.editor.verbs import manual
from planc.ir.target import TARGETS
from planc.syntax.expected_tokens import MARK, Follow, follow
from planc.syntax.lines import HEADERS, VERBS, logical_lines

Kind = Literal["verb", "keyword", "name", "unit", "code", "file"]
MOST_FILES = 200


@dataclass(frozen=True)
class Replacement:
    """A replacement of the word from `start` to the cursor; `about` describes it."""

    text: str
    kind: Kind
    about: str
    start: int


@dataclass(frozen=True)
class _WordPlace:
    """The word under the cursor, which begins at `start`. `before` is the sentence up to it."""

    text: str
    offset: int
    start: int
    before: str

    @property
    def verb(self) -> str:
        return self.before.split(maxsplit=1)[0]


def complete(opened: Opened, offset: int, unsaved: Mapping[Path, str], settings: EditorSettings) -> list[Replacement]:
    """Return the completions at `offset` of the opened text, in planc's order.

    `unsaved` are texts of open files by path, which take precedence over those on disk.
    """
    place = _place(opened.text, offset)
    if place is None:
        return []
    if not place.before.strip():
        return _verbs(opened, place)
    if place.before.count('"') % 2:
        return [Replacement(f, "file", "a file beside the plan", place.start) for f in _files(opened, place)]
    what = follow(place.before)
    if what is None:
        return []
    names = list(_names(opened, place, what, unsaved, settings))
    verbs = place.before.rstrip().endswith(":")
    keywords = [
        Replacement(k, "verb" if verbs else "keyword", manual(k) if verbs else "", place.start) for k in what.keywords
    ]
    return [*names, *keywords]


def _place(text: str, offset: int) -> _WordPlace | None:
    """Return the word under the cursor at `offset`, and the sentence before it; None in a comment."""
    line = text[:offset].rpartition("\n")[2]
    quoted = line.rpartition('"') if line.split("#")[0].count('"') % 2 else None
    pattern = r"[\w.*]*$" if line.lstrip().startswith("override") else r"[\w.%]*$"
    word = quoted[2] if quoted else re.search(pattern, line)[0]  # type: ignore[index]
    start = offset - len(word)
    marked = list(logical_lines(Source.of("", text[:start] + MARK)))
    if not marked or not marked[-1].text.endswith(MARK):
        return None
    return _WordPlace(text, offset, start, marked[-1].text[: -len(MARK)])


def _verbs(opened: Opened, place: _WordPlace) -> list[Replacement]:
    header = opened.file.header
    first = header is None or header.span.line == opened.text.count("\n", 0, place.start) + 1
    hardware = header is not None and header.verb == "hardware"
    machines = VERBS[VERBS.index("chip") :]
    usual = [v for v in VERBS if v not in HEADERS and (v in machines) == hardware]
    return [Replacement(v, "verb", manual(v), place.start) for v in ([*HEADERS, *usual] if first else usual)]


def _files(opened: Opened, place: _WordPlace) -> Iterator[str]:
    """Yield the names of files to import, or of configs to read, in the plan's folder and one level below."""
    ending = "*.json" if place.verb == "model" else "*.plan"
    folder = opened.path.parent
    found = sorted([*folder.glob(ending), *folder.glob(f"*/{ending}")])[:MOST_FILES]
    yield from (p.relative_to(folder).as_posix() for p in found if p != opened.path)


def _names(
    opened: Opened, place: _WordPlace, what: Follow, unsaved: Mapping[Path, str], settings: EditorSettings
) -> Iterator[Replacement]:
    if place.verb == "on" and place.before.split() == ["on"]:
        yield from (Replacement(t, "name", "a target", place.start) for t in TARGETS)
    elif what.code:
        yield from (Replacement(c, "code", rule.page.title, place.start) for c, rule in rules().items())
    else:
        for about, legal in _legal_names(opened, place, what, unsaved, settings).items():
            kind: Kind = "unit" if about.startswith("a unit") else "name"
            yield from (Replacement(name, kind, about, place.start) for name in legal if name)


def _legal_names(
    opened: Opened, place: _WordPlace, what: Follow, unsaved: Mapping[Path, str], settings: EditorSettings
) -> dict[str, tuple[str, ...]]:
    """Return the legal names at the cursor, by description. To find them, the sentence is read with a placeholder
    there, followed by the words after the cursor or else by the fewest that complete the sentence."""
    line_end = place.text.find("\n", place.offset)
    line_end = len(place.text) if line_end < 0 else line_end
    rest = re.sub(r"^[\w.*]+", "", place.text[place.offset : line_end])
    found: dict[str, tuple[str, ...]] = {}
    for ending in dict.fromkeys((rest, *what.endings)) if what.endings else ():
        text = place.text[: place.start] + MARK + ending + place.text[line_end:]
        lookups = names_in(opened.path, text, unsaved, settings)
        found |= {a.what: a.legal for a in lookups if a.word.text == MARK}
        if found and rest.strip():
            break
    return found
