"""The mutant runner itself: it sees a fault that is caught, one that is missed, and one out of date."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
MUTANTS = ROOT / "tests" / "mutants"


@pytest.fixture(scope="module")
def runner() -> ModuleType:
    sys.path.insert(0, str(MUTANTS))
    spec = importlib.util.spec_from_file_location("mutants_run", MUTANTS / "run.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "thing.py").write_text("def double(x):\n    return 2 * x\n")
    (tmp_path / "test_thing.py").write_text("from thing import double\n\ndef test_two():\n    assert double(2) == 4\n")
    return tmp_path


def planted(runner: ModuleType, tree: Path, text: str, instead: str) -> str:
    fault = runner.Fault("a fault", "thing.py", text, instead, "test_thing.py::test_two")
    found: str = runner.verdict(tree, fault)
    assert (tree / "thing.py").read_text() == "def double(x):\n    return 2 * x\n"
    return found


def test_a_fault_that_turns_its_test_red_is_caught(runner: ModuleType, tree: Path) -> None:
    assert planted(runner, tree, "2 * x", "3 * x") == ""


def test_a_fault_that_its_test_does_not_see_is_missed(runner: ModuleType, tree: Path) -> None:
    assert "stays green" in planted(runner, tree, "2 * x", "x + x")


def test_a_fault_whose_text_is_gone_is_missed(runner: ModuleType, tree: Path) -> None:
    assert "found 0 times" in planted(runner, tree, "x << 1", "x")


def test_a_fault_that_breaks_the_test_file_itself_is_not_called_caught(runner: ModuleType, tree: Path) -> None:
    assert "did not run" in planted(runner, tree, "def double(x):", "def double(x)")


def test_every_fault_can_still_be_planted(runner: ModuleType) -> None:
    """Cheap, so it runs always: each text occurs once, and each named test's file exists."""
    texts = {f.name: (ROOT / f.file).read_text().count(f.text) for f in runner.FAULTS}
    assert {name: n for name, n in texts.items() if n != 1} == {}
    assert [f.name for f in runner.FAULTS if not (ROOT / f.test.split("::")[0]).is_file()] == []
    assert len({f.name for f in runner.FAULTS}) == len(runner.FAULTS)
