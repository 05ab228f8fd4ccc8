"""Docstrings say what a stranger needs: what is returned, in which unit, which argument is what, by which source.

The floors are what was measured; a room that documents more raises them. `python tests/docstrings.py` prints all rooms.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import planc
from tests.docstrings import ROOT, Figures, Function, figures, public_functions
from tests.house.test_floors import source_files
from tests.room_interfaces import room, used_elsewhere

OPENINGS = ("Of ", "What ", "Whether ")
"""A noun says it instead: these need the name above them to be understood."""
OPENED = re.compile(r"[\"'](?:Of|What|Whether) ")
"""The text of a file with such a docstring, or with one in a text that it writes: few need parsing."""
IN_PROGRAM = re.compile(r'^\s*"""(?:Of|What|Whether) ', re.MULTILINE)

FLOORS: dict[str, dict[str, float]] = {
    "backends/common": {"described": 1.0, "arguments": 1.0},
    "backends/cuda": {"described": 0.79, "arguments": 0.48, "units": 0.85},
    "backends/torch_xla": {"described": 0.85, "arguments": 0.54, "units": 0.83},
    "backends/xla": {"described": 0.77, "arguments": 0.51, "units": 0.85},
    "planc": {"described": 1.0, "arguments": 1.0},
    "planc/calibration": {"described": 0.87, "arguments": 0.95, "units": 0.76},
    "planc/catalog": {"described": 0.98, "arguments": 0.94, "units": 0.9},
    "planc/checks": {"described": 0.43, "arguments": 0.37, "units": 0.88},
    "planc/cli": {"described": 0.66, "arguments": 0.33, "units": 0.11},
    "planc/compare": {"described": 0.87, "arguments": 0.94, "units": 1.0},
    "planc/costing": {"described": 1.0, "arguments": 0.98, "units": 1.0, "sources": 0.57},
    "planc/diag": {"described": 0.96, "arguments": 0.82},
    "planc/editor": {"described": 0.9, "arguments": 0.89, "units": 1.0},
    "planc/ir": {"described": 0.78, "arguments": 0.89, "units": 0.69},
    "planc/language": {"described": 0.65, "arguments": 0.56, "units": 0.55},
    "planc/pipeline": {"described": 1.0, "arguments": 1.0, "units": 0.96, "sources": 0.2},
    "planc/searching": {"described": 0.95, "arguments": 1.0, "units": 0.94},
    "planc/sharding": {"described": 1.0, "arguments": 1.0, "units": 1.0},
    "planc/syntax": {"described": 1.0, "arguments": 0.61, "units": 0.0},
    "planc/trainer": {"described": 0.85, "arguments": 0.93, "units": 0.83},
}
"""Least share of a room's public functions, by figure of `tests.docstrings.Figures.shares`."""

USED_FLOORS: dict[str, dict[str, float]] = {
    "backends/common": {"described": 1.0, "arguments": 1.0},
    "backends/cuda": {"described": 1.0, "arguments": 1.0},
    "backends/torch_xla": {"described": 1.0, "arguments": 1.0, "units": 1.0},
    "backends/xla": {"described": 1.0, "arguments": 1.0},
    "planc": {"described": 1.0, "arguments": 0.75},
    "planc/calibration": {"described": 1.0, "arguments": 1.0, "units": 0.87},
    "planc/catalog": {"described": 1.0, "arguments": 1.0},
    "planc/checks": {"described": 1.0, "arguments": 1.0},
    "planc/compare": {"described": 1.0, "arguments": 1.0},
    "planc/diag": {"described": 1.0, "arguments": 1.0},
    "planc/editor": {"described": 1.0},
    "planc/ir": {"described": 1.0, "arguments": 0.96, "units": 0.94},
    "planc/language": {"described": 1.0, "arguments": 0.96, "units": 0.75},
    "planc/syntax": {"described": 1.0, "arguments": 1.0},
    "planc/trainer": {"described": 1.0, "arguments": 1.0},
}
"""The same, of the functions that other rooms use (`tests.room_interfaces`)."""


@cache
def measured(tree: Path) -> list[Function]:
    return public_functions(tree)


def in_room(name: str, tree: Path = ROOT) -> Figures:
    return figures(f for f in measured(tree) if room(f.place) == name)


def used_of(name: str) -> Figures:
    return figures(f for f in measured(ROOT) if room(f.place) == name and f.used_elsewhere)


@pytest.mark.parametrize("name", FLOORS)
def test_a_room_says_at_least_as_much_as_before(name: str) -> None:
    shares = in_room(name).shares()
    assert {figure: shares[figure] for figure, floor in FLOORS[name].items() if shares[figure] < floor} == {}


@pytest.mark.parametrize("name", USED_FLOORS)
def test_what_other_rooms_use_is_documented(name: str) -> None:
    shares = used_of(name).shares()
    assert {figure: shares[figure] for figure, floor in USED_FLOORS[name].items() if shares[figure] < floor} == {}


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
        for node in ast.walk(ast.parse(text)) if OPENED.search(text) else ():
            match node:
                case ast.Expr(value=ast.Constant(value=str(said))) if said.startswith(OPENINGS):
                    yield f"{path}:{node.lineno}"


def poor_openings_of_programs(files: dict[str, str]) -> Iterator[str]:
    """`path:line` of every text that is written into programs and has such a docstring."""
    for path, text in files.items():
        for node in ast.walk(ast.parse(text)) if OPENED.search(text) else ():
            match node:
                case ast.Constant(value=str(emitted)) if IN_PROGRAM.search(emitted):
                    yield f"{path}:{node.lineno}"


def test_docstrings_of_emitted_programs_open_with_a_noun() -> None:
    assert list(poor_openings_of_programs(source_files(ROOT))) == []


def test_a_poor_opening_of_a_program_is_found() -> None:
    emitted = "T = '''\ndef f():\n    \"\"\"What it made.\"\"\"\n'''\n"
    assert list(poor_openings_of_programs({"backends/a.py": emitted})) == ["backends/a.py:1"]


def test_docstrings_open_with_a_noun() -> None:
    tests = {str(file.relative_to(ROOT)): file.read_text() for file in (ROOT / "tests").rglob("*.py")}
    assert list(poor_openings(source_files(ROOT) | tests)) == []


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
    (tmp_path / "planc" / "costing").mkdir(parents=True)
    (tmp_path / "planc" / "costing" / "a.py").write_text(textwrap.dedent(text))
    assert in_room("planc/costing", tmp_path) == Figures(
        functions=4, described=3, arguments=(1, 3), units=(2, 3), sources=1
    )


def test_what_other_rooms_use_is_found() -> None:
    """Through a package that passes a name on, a module's attribute and `__all__`; not from the own room."""
    files = {
        "planc/ir/plan.py": """
            class Plan:
                def fits(self, bytes): ...
                def to_json(self): ...
                def run(self, steps): ...
                @property
                def size(self): ...
                def _private(self): ...
            class Runs(Protocol):
                def run(self, steps):
                    "Documented once."
            def build(): ...
            def inside(): ...
            """,
        "planc/ir/report.py": "from planc.ir.plan import inside",
        "planc/costing/__init__.py": "from planc.costing.step import step_s\n__all__ = ['step_s', 'LIMIT']\nLIMIT = 3",
        "planc/costing/step.py": "from planc.ir.plan import Plan, Runs\ndef step_s(): ...\ndef helper(): ...",
        "planc/driver.py": "from planc.backends.cuda import emit\nfrom planc.files import read\nemit.program(read)",
        "planc/files.py": "def read(): ...\ndef write(): ...",
        "backends/cuda/emit.py": "from ...ir import plan\nfrom .rules import rule\ndef program(): plan.build()",
        "backends/cuda/rules.py": "def rule(): ...",
    }
    assert used_elsewhere({place: ast.parse(textwrap.dedent(text)) for place, text in files.items()}) == {
        ("planc/ir/plan.py", "Plan.fits"),
        ("planc/ir/plan.py", "Runs.run"),
        ("planc/ir/plan.py", "build"),
        ("planc/costing/step.py", "step_s"),
        ("planc/files.py", "read"),
        ("backends/cuda/emit.py", "program"),
    }
