"""A compiler-only installation: whatever needs torch, jax or numpy answers E1009."""

import subprocess
import sys
from pathlib import Path

import pytest

from planc.cli import main
from planc.cli.commands import bench
from tests.plans import ROOT

ABSENT = """
import sys
for name in ("torch", "jax", "jaxlib", "optax", "numpy", "safetensors", "torch_xla"):
    sys.modules[name] = None
import planc
from planc.cli import main
from planc.diag.errors import PlanError
"""
COMMANDS = """
for words in (
    ["train", "plans/presets/tiny.toml"],
    ["train", "plans/presets/tiny.toml", "--dry-run"],
    ["train", "plans/presets/tiny.toml", "--single", "--format", "json"],
    ["audit", "plans/tiny.plan"],
    ["calibrate", "--format", "json"],
):
    assert main([*words, "--target", TARGET]) == (1 if words[0] == "train" else 2), words
"""
PROGRAMS = """
program = planc.lower("plans/tiny.plan", target=TARGET)
for call in (program.load, lambda: (program.parallelize if TARGET == "cuda" else program.shardings)({})):
    try:
        call()
    except PlanError as error:
        print(error)
"""


def answer(text: str, target: str) -> str:
    code = f"{ABSENT}\nTARGET = {target!r}\n{text}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("target", ["cuda", "xla"])
def test_commands_name_what_is_missing(target: str) -> None:
    said = answer(COMMANDS, target)
    assert said.count("error[E1009]") + said.count('"code": "E1009"') == 5
    assert f"pip install 'planc[{target}]'" in said


@pytest.mark.parametrize("target", ["cuda", "xla"])
def test_programs_name_what_is_missing(target: str) -> None:
    assert answer(PROGRAMS, target).count("E1009") == 2


def test_the_compiler_works_without_frameworks() -> None:
    words = '["check", "plans/tiny.plan", "--target", TARGET], ["lower", "plans/tiny.plan", "--target", TARGET]'
    said = answer(f"for words in ({words}):\n    assert main(words) == 0", "xla")
    assert "memory GiB" in said and "import jax" in said


def test_audits_of_modules_name_torch() -> None:
    assert "E1009" in answer('assert main(["audit", "--portability", "llama"]) == 2', "xla")


def test_experiments_need_torch_to_run_and_nothing_to_be_predicted(tmp_path: Path) -> None:
    words = ["bench", "accelerator", "--state", str(tmp_path / "state")]
    said = answer(f"assert main({words}) == 2\nassert main({[*words, '--dry']}) == 0", "cuda")
    assert said.count("error[E1009]") == 1 and "small_xla" in said
    assert not (tmp_path / "state").exists()


def test_benches_without_a_checkout_say_that_they_need_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An installed package has no laboratory, whatever the folder is called that it lies in."""
    (tmp_path / "tests").mkdir()
    monkeypatch.setattr(bench, "ROOT", tmp_path)
    for table in bench.TABLES:
        assert main(["bench", table]) == 2
        said = capsys.readouterr()
        assert said.out == "" and "checkout" in said.err and "Traceback" not in said.err
