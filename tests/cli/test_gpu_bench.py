"""`planc bench gpu` where there is no GPU: what it says, what it would run, and how it measures."""

from __future__ import annotations

from pathlib import Path

import pytest

from planc.cli import main
from planc.cli.bench import gpu as gpu_bench
from planc.driver import check
from planc.trainer.run import devices


def test_without_a_device_it_says_so(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "cuda_devices", lambda: ("", 0))
    assert main(["bench", "gpu"]) == 2
    assert "no CUDA device" in capsys.readouterr().err
    monkeypatch.setattr(devices, "cuda_devices", lambda: ("Some Card", 1))
    assert main(["bench", "gpu"]) == 2
    assert "no numbers of a `Some Card`" in capsys.readouterr().err


@pytest.mark.parametrize("node", sorted(set(gpu_bench.NODES.values())))
def test_what_it_would_run_fits_and_is_lowered(node: str, tmp_path: Path) -> None:
    plans = gpu_bench.written(tmp_path, f"{node}(1)", 1)
    assert plans
    for path in plans:
        report = check(path, target="cuda")
        assert report.ok, [d.message for d in report.diagnostics]


@pytest.mark.launch
@pytest.mark.long
def test_a_plan_is_measured_beside_its_prediction(tmp_path: Path) -> None:
    path = tmp_path / "small.plan"
    text = gpu_bench.PLAN.replace("attention.core as flash\n", "").replace("compile   blocks as inductor\n", "")
    path.write_text(
        text.format(
            name="small",
            model="llama_tiny",
            batch="4 x 32 tokens microbatch 1",
            cluster="2 x cpu_local",
            devices=2,
            recompute="none",
        )
    )
    (row,) = gpu_bench.measured([path], "cuda", 2, 1)
    assert row.step_s > 0 and row.predicted_s > 0
    assert row.mfu * row.step_s == pytest.approx(row.predicted_mfu * row.predicted_s)
    assert row.peak_gib is not None and row.peak_gib > 0.1
