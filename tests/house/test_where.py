"""The answers to "where is it decided?" are true of this tree: every file is there and defines the name."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
QUESTIONS = tomllib.loads((ROOT / "tests" / "house" / "where.toml").read_text())["question"]


def defined(path: Path) -> set[str]:
    """Names that a module defines at its top level."""
    names: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names


def test_there_are_ten_questions() -> None:
    assert len({q["asks"] for q in QUESTIONS}) == 10


@pytest.mark.parametrize("question", QUESTIONS, ids=[q["name"] for q in QUESTIONS])
def test_an_answer_is_where_it_says(question: dict[str, str]) -> None:
    assert question["name"] in defined(ROOT / question["file"])
