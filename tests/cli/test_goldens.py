"""Outputs of planc for the bundled plans, committed beside them. `make goldens` rewrites it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from planc.cli import main
from planc.driver import lower
from tests.plans import BUNDLED, FIELD, ROOT

GOLDENS = ROOT / "plans" / "goldens"
EMITTED = [("tiny", "xla"), ("llama3_70b_v5p", "xla"), ("llama3_70b_v5p", "cuda")]


@pytest.mark.parametrize("path", [*BUNDLED, *FIELD], ids=lambda p: p.stem)
def test_the_check(path: Path, golden: Callable[[Path, str], None], capsys, monkeypatch) -> None:
    monkeypatch.chdir(ROOT)
    assert main(["check", str(path.relative_to(ROOT))]) == 0
    golden(GOLDENS / f"{path.stem}.check.txt", capsys.readouterr().out)


@pytest.mark.parametrize(("name", "target"), EMITTED)
def test_the_emitted_text(name: str, target: str, golden: Callable[[Path, str], None]) -> None:
    golden(GOLDENS / f"{name}.{target}.py", lower(ROOT / "plans" / f"{name}.plan", target).text)
