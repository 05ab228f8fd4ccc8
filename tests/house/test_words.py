"""Identifiers are the field's words: names that only this house would know are refused.

A name is read word by word, so `kept_bytes` holds `kept`. Keys of published JSON formats are listed in `CONTRACT`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
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

CONTRACT = {
    ("planc/ir/plan.py", "kept"): "a key of planc.plan/1: the ops after `except`",
    ("planc/ir/plan.py", "kept_layers"): "a key of planc.plan/1: the layers after `except`",
    ("planc/ir/model.py", "groups_kept"): "a key of planc.plan/1: groups of experts that a router picks from",
    ("planc/compare/resharding_bytes.py", "moved_bytes"): "a key of planc.diff/1",
}
"""Names that are keys of a published JSON format, and so stay: (file, name), and the key's meaning."""


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
        if (path, name) not in CONTRACT:
            yield from ((word, f"{path}:{line} {name}") for word in words(name) & set(REFUSED))


def test_no_name_is_private() -> None:
    found = [
        f"{place} (say {REFUSED[word]})"
        for path in source_files(ROOT)
        for word, place in private(str(path.relative_to(ROOT)), path.read_text())
    ]
    assert found == []


def test_every_key_of_a_format_is_still_a_name() -> None:
    gone = [(path, name) for path, name in CONTRACT if name not in dict(names_of((ROOT / path).read_text()))]
    assert gone == []


def test_a_planted_name_is_found() -> None:
    text = "class Told:\n    least_s: float\ndef f(kept):\n    self.ways = 1\nTURNS = 2\nfair = outside = 3\n"
    assert sorted(word for word, _ in private("planc/costing/suits.py", text)) == [
        "kept",
        "least",
        "suits",
        "told",
        "turns",
        "ways",
    ]
    assert list(private("planc/ir/plan.py", "class Recompute:\n    kept: int\n    kept_ops: int\n")) == [
        ("kept", "planc/ir/plan.py:3 kept_ops")
    ]
    assert list(private("planc/costing/fair.py", "def always_asking(leaston): ...")) == []
