"""The presets of real models: each holds its plan as it is now, fits its devices, and can be trained by planc."""

from __future__ import annotations

from pathlib import Path

import pytest

from planc.checks import check_plan
from planc.driver import cost
from planc.ir.target import Target
from planc.lowering import lower_to_train
from planc.trainer.preset.load import load_preset
from planc.trainer.run.lr_schedule import learning_rate

PRESETS = sorted((Path(__file__).resolve().parents[2] / "plans" / "presets").glob("*.toml"))
MODELS = {"llama3_8b", "llama3_70b", "llama3_405b", "mixtral_8x7b", "deepseek_v3", "qwen3_8b"}


def target_of(path: Path) -> Target:
    return "xla" if path.stem.endswith("v5p") else "cuda"


def test_every_model_is_there_for_every_chip() -> None:
    real = {p.stem for p in PRESETS if not p.stem.startswith("tiny")}
    assert real == {f"{m}_{c}" for m in MODELS for c in ("h100", "b200", "v5p")}


@pytest.mark.parametrize("path", PRESETS, ids=lambda p: p.stem)
def test_a_preset_fits_and_is_lowered(path: Path) -> None:
    preset = load_preset(path)
    assert preset.notes == ()
    program = lower_to_train(check_plan(preset.plan), target_of(path))
    assert preset.plan.name in program.text
    report = cost(preset.plan, target=target_of(path))
    assert report.memory is not None and report.step is not None
    assert report.memory.per_device_gib.total <= report.memory.usable_gib
    assert [d.code for d in report.diagnostics if d.severity == "error"] == []
    train = preset.train
    rates = [learning_rate(train, step) for step in (1, train.warmup_steps or 1, train.steps)]
    assert rates[0] <= rates[1] == pytest.approx(train.lr)
    assert rates[2] == pytest.approx(train.min_lr)
