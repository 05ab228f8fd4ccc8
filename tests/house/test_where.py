"""The answers to "where is it decided?" in ARCHITECTURE.md are true of this tree: every file defines its name."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

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


def test_there_are_twenty_questions() -> None:
    assert len({question for question, _, _ in ROWS}) == 20


@pytest.mark.parametrize(("question", "file", "name"), ROWS, ids=[name for _, _, name in ROWS])
def test_an_answer_is_where_it_says(question: str, file: str, name: str) -> None:
    assert name in defined(ROOT / file), question
