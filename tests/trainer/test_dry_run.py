"""The dry run: a smaller plan with the same work a rank and microbatch, traced on fake devices."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planc.cli import main
from planc.trainer.preset.load import load_preset
from planc.trainer.run.dry_run import MOST_DEVICES, small

PRESETS = Path(__file__).resolve().parents[2] / "plans" / "presets"


@pytest.mark.parametrize("name", ["tiny", "llama3_70b_h100", "llama3_405b_b200", "deepseek_v3_h100", "qwen3_8b_v5p"])
def test_what_is_traced_does_the_same_work_a_microbatch(name: str) -> None:
    plan = load_preset(PRESETS / f"{name}.toml").plan
    traced = small(plan)
    assert traced.mesh.devices <= max(MOST_DEVICES, plan.mesh.devices // plan.data_parallel * 2, 4096)
    assert traced.batch.microbatch_sequences == plan.batch.microbatch_sequences
    assert traced.mesh.sizes.get("tp") == plan.mesh.sizes.get("tp")
    assert traced.pipeline == plan.pipeline
    microbatches = traced.batch.sequences / traced.data_parallel / traced.batch.microbatch_sequences
    assert microbatches == min(plan.pipeline, plan.batch.sequences / plan.data_parallel)


@pytest.mark.launch
@pytest.mark.parametrize("target", ["cuda", "xla"])
def test_a_dry_run_takes_the_first_step_on_fake_devices(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The dry run takes the preset as the command line has it: here only that names a folder for checkpoints."""
    text = (PRESETS / "tiny.toml").read_text()
    assert 'folder = ""\nevery_steps = 0' in text
    (tmp_path / "saving.toml").write_text(text.replace("every_steps = 0", "every_steps = 2"))
    words = ["train", str(tmp_path / "saving.toml"), "--target", target, "--checkpoint", str(tmp_path / "kept")]
    assert main([*words, "--dry-run", "--format", "json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["devices"], said["traced"]["devices"]) == (4, 4)
    found = said["traced"]["found"]
    if target == "cuda":
        assert {row["op"] for row in found["collectives"]} >= {"all_gather", "reduce_scatter"}
        assert found["peak_bytes"] > 1 << 20
    else:
        assert found["operations"] > 100
        assert found["state_bytes"] > 1 << 20


def test_a_plan_for_a_cluster_is_no_error_in_a_dry_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """And where the step does not run on fake devices, that is said."""
    monkeypatch.setattr("planc.trainer.run.dry_run.dry_run", lambda _plan, _target: (None, "Trace\nValueError: no"))
    path = str(PRESETS / "llama3_70b_h100.toml")
    assert main(["train", path, "--target", "cuda", "--dry-run"]) == 1
    assert main(["train", path, "--target", "cuda"]) == 1
