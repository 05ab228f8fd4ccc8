"""Identifiers are the field's words: names that only this house would know are refused.

A name is read word by word, so `kept_bytes` holds `kept`. `ALLOWED` counts the names from before the rule that still
stand; it only shrinks.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.docstrings import ROOT, source_files

REFUSED = {
    "abreast": "parallel",
    "alike": "identical, equivalent",
    "asked": "requested, launched",
    "astray": "misplaced",
    "bare": "transfer, undecorated",
    "keeping": "checkpointing",
    "kept": "saved",
    "lacking": "missing",
    "least": "lower_bound, min",
    "like": "same, equivalent",
    "mend": "fix",
    "mends": "fixes",
    "moved": "transferred",
    "moves": "transfers",
    "nearly": "tolerance",
    "often": "count",
    "passage": "path",
    "pulse": "heartbeat",
    "quiet": "contention",
    "rehearsal": "dry_run",
    "rehearse": "dry_run",
    "said": "message",
    "says": "message",
    "seldom": "rare",
    "suits": "compatible",
    "told": "result, cache",
    "turn": "repeat, period",
    "turns": "repeats, periods",
    "uncollected": "gc_paused",
    "way": "path",
    "ways": "paths, shards",
    "win": "precedence",
    "worth": "threshold",
}
"""A private word, and what the field says instead."""

ALLOWED: dict[str, int] = {
    "asked": 11,
    "keeping": 1,
    "kept": 27,
    "least": 8,
    "mend": 1,
    "mends": 3,
    "moved": 9,
    "moves": 7,
    "quiet": 1,
    "said": 9,
    "says": 1,
    "told": 7,
}
"""Names with a refused word that still stand, by word. A count goes down or goes away, and never up."""


def words(name: str) -> set[str]:
    """The words of an identifier, in lower case: `peakBytes_of` is peak, bytes and of."""
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}


def names_of(text: str) -> Iterator[tuple[str, int]]:
    """Functions, classes, parameters, attributes and constants that a module names, with their lines."""
    module = ast.parse(text)
    for node in ast.walk(module):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name, node.lineno
            case ast.arg():
                yield node.arg, node.lineno
            case ast.Attribute(ctx=ast.Store()):
                yield node.attr, node.lineno
            case _:
                pass
        if isinstance(node, ast.ClassDef | ast.Module):
            for statement in node.body:
                targets = statement.targets if isinstance(statement, ast.Assign) else []
                targets = [statement.target] if isinstance(statement, ast.AnnAssign) else targets
                yield from ((t.id, t.lineno) for t in targets if isinstance(t, ast.Name))


def private(path: str, text: str) -> Iterator[tuple[str, str]]:
    """(refused word, place and name) of a file: its own name, and those in it."""
    for name, line in ((Path(path).stem, 1), *names_of(text)):
        yield from ((word, f"{path}:{line} {name}") for word in words(name) & set(REFUSED))


@cache
def found() -> dict[str, list[str]]:
    """Every name with a refused word, by word."""
    places: dict[str, list[str]] = {word: [] for word in REFUSED}
    for path in source_files(ROOT):
        for word, place in private(str(path.relative_to(ROOT)), path.read_text()):
            places[word].append(place)
    return places


def test_no_new_name_is_private() -> None:
    over = {f"{w} (say {REFUSED[w]})": names for w, names in found().items() if len(names) > ALLOWED.get(w, 0)}
    assert over == {}


def test_the_list_of_what_still_stands_only_shrinks() -> None:
    """A word that is gone leaves the list."""
    assert [word for word in ALLOWED if not found()[word]] == []


def test_a_planted_name_is_found() -> None:
    text = "class Told:\n    least_s: float\ndef f(kept):\n    self.ways = 1\nTURNS = 2\nfair = outside = 3\n"
    assert sorted(word for word, _ in private("planc/cost/suits.py", text)) == [
        "kept",
        "least",
        "suits",
        "told",
        "turns",
        "ways",
    ]
    assert list(private("planc/cost/fair.py", "def always_asking(leaston): ...")) == []
