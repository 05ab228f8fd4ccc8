"""The answers to "where is it decided?" in ARCHITECTURE.md are true of this tree: every file defines its name."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.house.test_floors import source_files

ROOT = Path(__file__).resolve().parents[2]
ROWS = re.findall(r"^\| (.+\?) \| `(\S+\.py)` \| `(\S+)` \|$", (ROOT / "ARCHITECTURE.md").read_text(), re.MULTILINE)


def defined(path: Path) -> set[str]:
    """Names that a module defines at its top level, and `Class.method` for its methods."""
    names: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{each.name}" for each in node.body if isinstance(each, ast.FunctionDef)}
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names


def test_there_are_twenty_questions_and_more() -> None:
    assert len({question for question, _, _ in ROWS}) == len(ROWS) > 20


@pytest.mark.parametrize(("question", "file", "name"), ROWS, ids=[name for _, _, name in ROWS])
def test_an_answer_is_where_it_says(question: str, file: str, name: str) -> None:
    assert name in defined(ROOT / file), question


ONE_ANSWERER: dict[str, tuple[str, set[str]]] = {
    "is the machine a torus, are its chips TPUs": (r"cluster\.kind\b|\.kind [!=]= \"node\"", set()),
    "are parameters gathered in each pass": (r"gather_per(_in\([^)]*\))? [!=]= \"pass\"", {"planc/ir/plan.py"}),
    "how is a split backward known by its schedule": (r"_BACKWARD_IN_TWO_PARTS\)", {"planc/ir/plan.py"}),
    "what is in host memory": (r"for o in \w+\.offloads for name", {"planc/ir/plan.py"}),
}
"""Questions that one place answers, what asking them elsewhere looks like, and the files that may."""


@pytest.mark.parametrize("question", ONE_ANSWERER)
def test_a_question_has_one_answerer(question: str) -> None:
    looks, allowed = ONE_ANSWERER[question]
    assert {path for path, text in source_files(ROOT).items() if re.search(looks, text)} == allowed
