"""`make demo`: the plans that it checks and lowers are answered as it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from planc.cli import main

ROOT = Path(__file__).resolve().parents[2]
LOWERED = re.compile(r"^  lower (\S+) --target (\w+) -o \S+( \|\| refused=\$\?)?$", re.MULTILINE)
COMMANDS = LOWERED.findall((ROOT / "docs" / "demo.sh").read_text())


@pytest.mark.parametrize(("plan", "target", "refused"), COMMANDS)
def test_what_the_demo_lowers_and_shows_refused(plan: str, target: str, refused: str, tmp_path: Path) -> None:
    status = main(["lower", str(ROOT / plan), "--target", target, "-o", str(tmp_path / "program.py")])
    assert status == (1 if refused else 0)


def test_the_demo_shows_a_refusal() -> None:
    assert [bool(refused) for _, _, refused in COMMANDS].count(True) == 1
