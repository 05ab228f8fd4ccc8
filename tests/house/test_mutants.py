"""The mutant runner itself: it sees a fault that is caught, one that is missed, and one out of date."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants.faults import FAULTS, Fault
from tests.mutants.run import IN_CI, verdict

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "thing.py").write_text("def double(x):\n    return 2 * x\n")
    (tmp_path / "test_thing.py").write_text("from thing import double\n\ndef test_two():\n    assert double(2) == 4\n")
    return tmp_path


def planted(tree: Path, text: str, instead: str) -> str:
    fault = Fault("a fault", "thing.py", text, instead, "test_thing.py::test_two")
    found = verdict(tree, fault)
    assert (tree / "thing.py").read_text() == "def double(x):\n    return 2 * x\n"
    return found


def test_a_fault_that_turns_its_test_red_is_caught(tree: Path) -> None:
    assert planted(tree, "2 * x", "3 * x") == ""


def test_a_fault_that_its_test_does_not_see_is_missed(tree: Path) -> None:
    assert "stays green" in planted(tree, "2 * x", "x + x")


def test_a_test_that_only_the_long_tier_runs_sees_a_fault_and_is_green_without(tree: Path) -> None:
    file = tree / "test_thing.py"
    file.write_text(f"import pytest\npytestmark = pytest.mark.long\n{file.read_text()}")
    assert planted(tree, "2 * x", "3 * x") == ""
    file.write_text(file.read_text().replace("== 4", "== 5"))
    assert "red without" in planted(tree, "2 * x", "3 * x")


def test_a_fault_whose_text_is_gone_is_missed(tree: Path) -> None:
    assert "found 0 times" in planted(tree, "x << 1", "x")


def test_a_fault_that_breaks_the_test_file_itself_is_not_called_caught(tree: Path) -> None:
    assert "did not run" in planted(tree, "def double(x):", "def double(x)")


def test_every_fault_can_still_be_planted() -> None:
    """Cheap, so it runs always: each text occurs once, and each named test exists."""
    texts = {f.name: (ROOT / f.file).read_text().count(f.text) for f in FAULTS}
    assert {name: n for name, n in texts.items() if n != 1} == {}
    tests = [f.test.partition("[")[0].split("::") for f in FAULTS]
    assert [t for t in tests if (f"def {t[1]}(" if t[1:] else "def test_") not in (ROOT / t[0]).read_text()] == []
    assert len({f.name for f in FAULTS}) == len(FAULTS)


def test_what_ci_runs_is_both_tiers() -> None:
    for tier in ("not long", "long"):
        assert f'-m "{tier} and {IN_CI}"' in (ROOT / "Makefile").read_text()


@pytest.mark.long
def test_every_fault_is_caught_in_ci() -> None:
    """Each test that a fault names has cases that CI runs, and no fault names a case that it does not."""
    tests = sorted({f.test for f in FAULTS})
    argv = [sys.executable, "-m", "pytest", "--collect-only", "-p", "no:cacheprovider", "-m", IN_CI, *tests]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    cases = [line for line in done.stdout.splitlines() if line.startswith("tests/")]
    assert done.returncode == 0, done.stdout[-2000:]
    assert [t for t in tests if not any(c == t or c.startswith((f"{t}[", f"{t}::")) for c in cases)] == []
