"""Three runtimes train the same from one preset; what the torch_xla run's receipt says; what is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from planc.diag import PlanError
from planc.diag.span import Span
from planc.trainer.run.environment import python_of
from planc.trainer.run.train import prepare
from tests.torch_xla.three import PRESET, compared, moe_preset_in, preset_in

ROOT = Path(__file__).resolve().parents[2]
STEPS = 30
"""Steps of the preset's 100: `make crosscheck` takes them all."""


@pytest.mark.launch
@pytest.mark.torch_xla
@pytest.mark.parametrize("dtype", ["fp32", pytest.param("bf16", marks=pytest.mark.slow)])
@pytest.mark.long
def test_three_runtimes_train_the_same(dtype: str, tmp_path: Path) -> None:
    check, receipts = compared(preset_in(tmp_path, dtype), STEPS)
    assert check.ok, check.to_json()
    assert [r.runtime for r in receipts] == ["torch", "jax", "torch_xla"]
    assert {len(r.losses) for r in receipts} == {STEPS}
    assert receipts[0].losses != receipts[2].losses, "two stacks that round alike to the bit are one stack"
    last = receipts[-1]
    assert last.target == "xla" and last.versions["torch_xla"].startswith("2.9.0")
    assert last.compile.uncached == 0 and last.compile.scalar_reads == 0
    norms = [r.measured.first_gradient_norms for r in receipts]
    assert all(norms) and len({frozenset(n) for n in norms if n}) == 1
    near = 1e-4 if dtype == "fp32" else 5e-2
    assert all(abs(n[name] - norms[0][name]) <= near * norms[0][name] for n in norms if n for name in n if norms[0])


@pytest.mark.launch
@pytest.mark.torch_xla
@pytest.mark.slow
def test_three_runtimes_train_experts_the_same(tmp_path: Path) -> None:
    check, receipts = compared(moe_preset_in(tmp_path), STEPS)
    assert check.ok and check.max_abs is not None and check.max_abs <= 1e-5, check.to_json()
    assert receipts[-1].compile.uncached == 0 and receipts[-1].compile.scalar_reads == 0


def test_an_environment_that_is_not_there_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = Span("preset.toml", 1, 1, 1, 1)
    with pytest.raises(PlanError, match="E1009"):
        python_of("torch_xla", tmp_path / "absent", here)
    monkeypatch.setattr("planc.trainer.run.environment.OWN", {"torch_xla": "no-such-folder"})
    with pytest.raises(PlanError) as refused:
        python_of("torch_xla", None, here)
    assert refused.value.diagnostics[0].help.startswith("`make torch-xla`")
    assert python_of("", None, here) == python_of("jax", None, here) == sys.executable


def test_a_python_of_the_working_directory_is_not_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever wrote a repository may have put any program there."""
    monkeypatch.setattr("planc.trainer.run.environment.OWN", {"torch_xla": "no-such-folder"})
    (tmp_path / "no-such-folder" / "bin").mkdir(parents=True)
    (tmp_path / "no-such-folder" / "bin" / "python").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PlanError, match="E1009"):
        python_of("torch_xla", None, Span("preset.toml", 1, 1, 1, 1))


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ('optimizer = "muon"', "optimizer muon"),
        ("deterministic = true", "deterministic"),
        ('decay_groups = { "norm.weight" = 0.1 }', "decay_groups"),
    ],
)
def test_what_the_runtime_does_not_have_is_refused(line: str, what: str, tmp_path: Path) -> None:
    preset = preset_in(tmp_path, "fp32")
    preset.write_text(preset.read_text().replace("[train]\n", f"[train]\n{line}\n"))
    here = Path(sys.executable)
    with pytest.raises(PlanError) as refused:
        prepare(preset, "xla", runtime="torch_xla", python=here)
    assert [(d.code, what in d.message) for d in refused.value.diagnostics] == [("E1003", True)]
    assert prepare(preset, "xla", python=here).steps == 100


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--target", "cuda", "--runtime", "torch_xla"), "the cuda target runs on torch"),
        (("--target", "xla", "--runtime", "torch"), "the xla target runs on jax or torch_xla"),
        (("--target", "xla", "--runtime", "torch_xla", "--single"), "--target cuda --single"),
    ],
)
def test_what_the_command_refuses(arguments: tuple[str, ...], says: str) -> None:
    argv = [sys.executable, "-m", "planc.cli", "train", str(PRESET), *arguments]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 2 and says in done.stderr
