"""Pythons that planc starts: none imports what lies in the working directory, which may be a stranger's."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SAFE = {"-P", "-I"}


def started(text: str) -> list[list[str]]:
    """The words before `-m` of each list or call that has it as a word of a command."""
    found: list[list[str]] = []
    if '"-m"' not in text:
        return found
    for node in ast.walk(ast.parse(text)):
        words = node.elts if isinstance(node, ast.List | ast.Tuple) else node.args if isinstance(node, ast.Call) else []
        texts = [w.value if isinstance(w, ast.Constant) else None for w in words]
        if "-m" in texts and not any(w == "--module" for w in texts):
            found.append([str(w) for w in texts[: texts.index("-m")]])
    return found


def test_every_python_that_is_started_imports_nothing_of_the_working_directory() -> None:
    """`python -m` looks there first, before its own library."""
    files = [
        p for room in ("planc", "backends", "tests/lab") for p in (ROOT / room).rglob("*.py") if not p.is_symlink()
    ]
    commands = {f.relative_to(ROOT).as_posix(): started(f.read_text()) for f in files}
    unsafe = {file: words for file, found in commands.items() for words in found if not SAFE & {*words}}
    assert unsafe == {} and sum(map(len, commands.values())) > 5


def test_an_unsafe_command_is_found() -> None:
    text = 'run([sys.executable, "-m", "planc"])\n_process("-m", "planc")\nx = ("-m", "--module")\n'
    assert sorted(started(text)) == [[], ["None"]]
    assert started('words = ["-P", "-m", "planc"]') == [["-P"]]


HOSTILE = ("json", "argparse", "planc", "numpy", "subprocess", "site", "encodings_x", "multiprocessing", "torch")


@pytest.mark.launch
def test_a_dry_run_in_a_strangers_folder_runs_none_of_its_modules(tmp_path: Path) -> None:
    for name in HOSTILE:
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'OWNED')!r}, 'w')\nraise SystemExit(9)\n")
    words = ["train", str(ROOT / "plans" / "presets" / "tiny.toml"), "--target", "xla", "--dry-run"]
    command = [sys.executable, "-P", "-c", f"import sys; from planc.cli import main; sys.exit(main({words!r}))"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "OWNED").exists()
