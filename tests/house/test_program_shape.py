"""The second wall: every program that planc writes passes, and a program with a stranger's code does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import planc
from planc.diag import PlanError
from planc.ir.program_shape import foreign

ROOT = Path(__file__).resolve().parents[2]
GOLDENS = sorted((ROOT / "plans" / "goldens").glob("*.py"))
PLANS = sorted([*(ROOT / "plans").glob("*.plan"), *(ROOT / "tests" / "field" / "plans").rglob("*.plan")])


@pytest.mark.parametrize("path", GOLDENS, ids=lambda p: p.name)
def test_a_golden_program_passes(path: Path) -> None:
    assert foreign(path.read_text()) == ""


def test_programs_of_many_plans_pass() -> None:
    """Those of the plans that a target takes, on every runtime."""
    count = 0
    for path in PLANS:
        for target, runtime in (("cuda", ""), ("xla", ""), ("xla", "torch_xla")):
            try:
                text = planc.lower(path, target, runtime=runtime).text  # type: ignore[arg-type]
            except PlanError:
                continue
            assert foreign(text) == "", f"{path} {target}"
            count += 1
    assert count > 40


FORGED = [
    "open('OWNED', 'w')", "import os", "import os.path as p", "from os import system", "from torch import os",
    "import torch.hub", "x = __import__('os')", "x = torch.os", "x = torch.load('f')", "x = np.load('f')",
    "x = getattr(torch, 'o' + 's')", "x = getattr(torch, 'os')", "x = ().__class__", "x = __builtins__",
    "def f():\n    exec('1')", "def f():\n    return eval('1')", "def f(a=open('OWNED', 'w')):\n    pass",
    "class A(__import__('os').PathLike):\n    pass", "@open\ndef f():\n    pass", "x = [globals() for _ in '1']",
    "x: open('f') = 1", "x = f\"{open('f')}\"", "x = lambda: vars()", "print('hi')", "for x in '1':\n    pass",
    "while True:\n    pass", "with x as y:\n    pass", "del x", "raise ValueError", "x = compile('1', '', 'exec')",
    "from pathlib import Path", "import subprocess", "from . import x", "x = torch.utils.cpp_extension",
    "x = torch.ops.load_library('f')", "x = re.enum.sys", "x = contextlib.os", "(", "x = 1\0",
]  # fmt: skip


@pytest.mark.parametrize("code", FORGED)
@pytest.mark.parametrize("path", GOLDENS[:2], ids=lambda p: p.name)
def test_a_program_with_a_strangers_code_does_not_pass(path: Path, code: str) -> None:
    text = path.read_text()
    assert foreign(f"{text}\n{code}\n")
    head, _, rest = text.partition("\n\n\n")
    assert foreign(f"{head}\n\n{code}\n\n\n{rest}")


def test_a_forged_program_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    program = planc.lower(ROOT / "plans" / "tiny.plan", "cuda")
    forged = replace(program, text=f"{program.text}\nx = open('OWNED', 'w')\n")
    with pytest.raises(PlanError, match="E1006"):
        forged.load()
    assert not (tmp_path / "OWNED").exists()
