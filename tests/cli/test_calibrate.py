"""`planc calibrate` and `planc bench calibrated` on a machine that is measured on paper."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from planc.calibration.probes import MeasuredProbe, predicted_s
from planc.cli import main
from planc.cli.commands import calibrate
from planc.cli.commands.calibrate import step_of
from planc.driver import check, load
from planc.ir.probe import Probe
from planc.ir.target import Target
from planc.trainer.measure import coordinator as measure
from tests.calibration.test_fit_machine import machine
from tests.lab.bench.calibrated import LAYOUTS

TRUTH = machine()


def on_paper(
    target: Target, devices: int, probes: Sequence[Probe] = (), plans: Sequence[Path] = (), **_: Any
) -> measure.Measurement:
    """The measurement of a launch on that machine: the second of two steps is the faster."""
    steps = {p.stem: step_of(load(p), 1.0, target).predicted_s(TRUTH) for p in plans}
    probed = tuple(MeasuredProbe(probe=p, seconds=predicted_s(p, TRUTH)) for p in probes)
    return measure.Measurement(probed, {name: (2 * s, s) for name, s in steps.items()})


@pytest.fixture(autouse=True)
def paper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "measure", on_paper)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    status = main(list(words))
    return status, capsys.readouterr().out


@pytest.mark.parametrize("target", [pytest.param(t, marks=pytest.mark.long) for t in ("cuda", "xla")])
def test_a_written_file_predicts_other_layouts(capsys: pytest.CaptureFixture[str], tmp_path: Path, target: str) -> None:
    file = str(tmp_path / "mine.plan")
    status, out = run(capsys, "calibrate", "--target", target, "-o", file)
    assert status == 0
    for word in ("matmul_efficiency", "fitted beside measured", "all_gather over 4", "whole steps", "* measured"):
        assert word in out, word
    assert f"--target {target}" in (tmp_path / "mine.plan").read_text()
    status, out = run(capsys, "bench", "calibrated", "--hardware", file, "--target", target, "--format", "json")
    found = json.loads(out)
    assert status == 0 and [row["layout"] for row in found["rows"]] == list(LAYOUTS) and len(LAYOUTS) == 8
    assert max(abs(row["error"]) for row in found["rows"]) < 0.05
    assert 0 < found["median"] <= max(abs(row["error"]) for row in found["rows"])


def test_json_holds_every_number(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(calibrate, "STEPPED", {name: calibrate.STEPPED[name] for name in ("dp_short", "dp_tp")})
    status, out = run(capsys, "calibrate", "--devices", "2", "--dtype", "bf16", "--format", "json")
    found = json.loads(out)
    assert "--target cuda --devices 2" in (tmp_path / "calibrated.plan").read_text()
    assert status == 0 and found["format"] == "planc.calibration/1"
    assert {p["dtype"] for p in found["probes"] if p["kind"] == "matmul"} == {"bf16"}
    assert all(p["measured_s"] > 0 and p["fitted_s"] > 0 for p in found["probes"])
    assert [s["name"] for s in found["steps"]] == ["dp_short", "dp_tp"]


def test_without_tables(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither measured nor written: costs take the fitted curves."""
    monkeypatch.setattr(calibrate, "STEPPED", {"dp_short": calibrate.STEPPED["dp_short"]})
    for words, tables in ((("--no-tables",), False), ((), True)):
        file = tmp_path / f"{tables}.plan"
        assert run(capsys, "calibrate", "--devices", "2", *words, "-o", str(file))[0] == 0
        assert ("measured matmul of" in file.read_text(), "measured attention of" in file.read_text()) == (tables,) * 2


@pytest.mark.parametrize("devices", [2, 3, 4, 6, 64])
def test_its_steps_are_plans_without_a_finding(tmp_path: Path, devices: int) -> None:
    for path in calibrate.stepped(tmp_path, "cpu_local", devices):
        assert [check(path, target=target).diagnostics for target in ("cuda", "xla")] == [(), ()], path.stem


def test_the_stack_that_is_there(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch's where both are; a machine with neither cannot be asked."""
    monkeypatch.chdir(tmp_path)
    assert calibrate.installed() == "cuda"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name == "jax" or None)
    assert calibrate.installed() == "xla"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert run(capsys, "calibrate")[0] == 2


def test_what_cannot_be_measured(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = str(tmp_path / "mine.plan")
    assert run(capsys, "calibrate", "--target", "cuda", "-o", file, "--devices", "1")[0] == 2
    assert run(capsys, "calibrate", "--target", "cuda", "-o", file, "--machine", "nothing")[0] == 2
    assert run(capsys, "calibrate", "--target", "xla", "-o", file, "--machine", "tpu_v5p")[0] == 2
    assert run(capsys, "bench", "calibrated", "--target", "cuda")[0] == 2
    (tmp_path / "bad.plan").write_text("hardware bad\nchip nonsense\n")
    bad = ("bench", "calibrated", "--target", "cuda", "--hardware", str(tmp_path / "bad.plan"))
    assert run(capsys, *bad)[0] == 2

    def failing(*_: Any, **__: Any) -> measure.Measurement:
        raise measure.MeasuringError("out of memory")

    monkeypatch.setattr(measure, "measure", failing)
    assert run(capsys, "calibrate", "--target", "cuda", "-o", file)[0] == 2
    assert not Path(file).exists()
