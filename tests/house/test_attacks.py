"""The table of attacks: every finding is in it, and every test that it names is in the tree."""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
FINDINGS: dict[str, dict[str, Any]] = tomllib.loads((ROOT / "tests" / "house" / "attacks.toml").read_text())


@cache
def functions_of(file: str) -> frozenset[str]:
    """Names of the tests that a file defines."""
    body = ast.parse((ROOT / file).read_text()).body
    return frozenset(n.name for n in body if isinstance(n, ast.FunctionDef) and n.name.startswith("test_"))


def test_every_finding_is_in_the_table() -> None:
    third = len(FINDINGS) - 26
    assert list(FINDINGS) == [f"S{n}" for n in range(1, 27)] + [f"T{n}" for n in range(1, third + 1)]
    assert all(set(finding) <= {"what", "tests", "open"} for finding in FINDINGS.values())


@pytest.mark.parametrize("name", FINDINGS)
def test_a_finding_has_tests_that_exist_or_says_what_is_open(name: str) -> None:
    finding = FINDINGS[name]
    assert finding["what"]
    assert finding["tests"] or finding["open"]
    for test in finding["tests"]:
        file, _, function = test.partition("::")
        assert function in functions_of(file), test


ANSWERS: dict[str, dict[str, Any]] = tomllib.loads((ROOT / "tests" / "house" / "answers.toml").read_text())


@pytest.mark.parametrize("number", range(14))
def test_a_kind_of_wrong_answer_has_a_law_and_tests_or_says_what_is_open(number: int) -> None:
    answer = ANSWERS[str(number)]
    assert set(answer) == {"kind", "law", "tests", "red", "open"} and answer["law"] and answer["red"]
    assert answer["tests"] or answer["open"]
    for test in answer["tests"]:
        file, _, function = test.partition("::")
        assert function in functions_of(file), test


def test_every_promise_to_strangers_names_tests_that_exist() -> None:
    """The threat model of SECURITY.md: who sends what, to which command, what is promised, which tests hold it."""
    table = (ROOT / "SECURITY.md").read_text().partition("| who sends what |")[2].partition("\n\n")[0]
    rows = [re.split(r" \| ", line.strip("| ")) for line in table.splitlines()[2:]]
    assert len(rows) > 10 and {len(row) for row in rows} == {4}
    for *_, tests in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", tests)
        assert named and len(named) == tests.count("`") // 2, tests
        assert [f"{file}::{test}" for file, test in named if test not in functions_of(file)] == []
