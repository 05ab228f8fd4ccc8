"""Docstrings say what a stranger needs: what is returned, in which unit, which argument is what, by which source.

The floors are what was measured; a room that documents more raises them. `python tests/docstrings.py` prints all rooms.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

import planc
from tests.docstrings import ROOT, Figures, figures, public_functions, room
from tests.house.test_floors import source_files

OPENINGS = ("Of ", "What ", "Whether ")
"""A noun says it instead: these need the name above them to be understood."""

FLOORS = {"planc/cost": {"described": 0.98, "arguments": 0.22, "units": 0.88, "sources": 0.24}}
"""Least share of a room's public functions, by figure of `tests.docstrings.Figures.shares`."""


def in_room(name: str, tree: Path = ROOT) -> Figures:
    return figures(f for f in public_functions(tree) if room(f.place) == name)


@pytest.mark.parametrize("name", FLOORS)
def test_a_room_says_at_least_as_much_as_before(name: str) -> None:
    shares = in_room(name).shares()
    assert {figure: share for figure, share in shares.items() if share < FLOORS[name][figure]} == {}


@pytest.mark.parametrize("name", [n for n in planc.__all__ if callable(getattr(planc, n))])
def test_what_users_import_is_documented(name: str) -> None:
    thing = getattr(planc, name)
    text = inspect.getdoc(thing) or ""
    assert text.strip()
    assert not text.startswith(OPENINGS)
    assert thing.__doc__ is not None, "its own, not that of a class it extends"


def poor_openings(files: dict[str, str]) -> Iterator[str]:
    """`path:line` of every docstring, attributes' and constants' too, that opens with a word of OPENINGS."""
    for path, text in files.items():
        for node in ast.walk(ast.parse(text)):
            match node:
                case ast.Expr(value=ast.Constant(value=str(said))) if said.startswith(OPENINGS):
                    yield f"{path}:{node.lineno}"


def test_docstrings_open_with_a_noun() -> None:
    assert list(poor_openings(source_files(ROOT))) == []


def test_a_poor_opening_is_found() -> None:
    text = '"""Rooms."""\nX = 1\n"""Of the plan."""\ndef f():\n    """Whether it fits."""\n'
    assert list(poor_openings({"planc/a.py": text})) == ["planc/a.py:3", "planc/a.py:5"]


def test_what_a_docstring_says_is_measured(tmp_path: Path) -> None:
    text = '''
        def bare(x): ...
        def said_s(x: int) -> float:
            """Time of one call, for `x` of them (arXiv:1909.08053)."""
        def plain(x) -> int:
            """Something."""
        def _private(x): ...
        class Thing:
            def size(self) -> int:
                """Bytes of it."""
    '''
    (tmp_path / "backends").mkdir()
    (tmp_path / "planc" / "cost").mkdir(parents=True)
    (tmp_path / "planc" / "cost" / "a.py").write_text(textwrap.dedent(text))
    assert in_room("planc/cost", tmp_path) == Figures(
        functions=4, described=3, arguments=(1, 3), units=(2, 3), sources=1
    )
