"""`planc calibrate --from`: a hardware file from a table of measured runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from planc.calibration.fit_steps import calibrate_from
from planc.calibration.probes import MeasuredStep
from planc.cli import main
from planc.driver import examine
from planc.ir.hardware import Cluster
from planc.language import library
from tests.plans import HEAD_BF16 as HEAD
from tests.trainer.test_crosscheck import receipt

LAYOUTS = {
    "fsdp": HEAD.replace("fsdp 8 > tp 8", "fsdp 64") + "use fsdp over fsdp\n",
    "zero2": HEAD.replace("fsdp 8 > tp 8", "dp 64") + "use zero2 over dp\n",
    "tp": HEAD + "use fsdp over fsdp\nuse tp over tp\n",
    "sp": HEAD + "use fsdp over fsdp\nuse tp over tp\nuse sp over tp\n",
    "again": HEAD + "use fsdp over fsdp\nuse tp over tp\nuse sp over tp\nrecompute blocks\n",
    "tp4": HEAD.replace("fsdp 8 > tp 8", "fsdp 16 > tp 4") + "use fsdp over fsdp\nuse tp over tp\n",
    "long": HEAD.replace("64 x 8192", "64 x 32768") + "use fsdp over fsdp\nuse tp over tp\nuse sp over tp\n",
    "short": HEAD.replace("64 x 8192", "512 x 1024") + "use fsdp over fsdp\nuse tp over tp\nuse sp over tp\n",
    "zero1": HEAD.replace("fsdp 8 > tp 8", "dp 8 > tp 8") + "use zero1 over dp\nuse tp over tp\n",
    "wide": HEAD.replace("llama3_8b", "llama3_70b") + "use fsdp over fsdp\nuse tp over tp\nuse sp over tp\n",
}
HELD = ("long", "wide")
"""Runs that take no part in a fit."""


def step_of(path: Path, seconds: float = 1.0) -> MeasuredStep:
    costed = examine(path).costed
    assert costed is not None and costed.target == "cuda"
    return MeasuredStep.of(path.name, costed, seconds)


def slower(cluster: Cluster) -> Cluster:
    """The machine whose runs are measured here on paper."""
    chip = replace(cluster.chip, matmul_efficiency=0.62 * cluster.chip.matmul_efficiency, memory_efficiency=0.5)
    return replace(cluster, chip=chip, link=replace(cluster.link, efficiency=0.6))


def written(folder: Path) -> list[Path]:
    """The plans of the layouts, in a folder."""
    for name, text in LAYOUTS.items():
        (folder / f"{name}.plan").write_text(text + "optimizer adamw\n")
    return [folder / f"{name}.plan" for name in LAYOUTS]


@pytest.fixture(scope="module")
def seconds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    """Seconds of each layout on that machine."""
    steps = {path.stem: step_of(path) for path in written(tmp_path_factory.mktemp("layouts"))}
    return {name: step.predicted_s(slower(step.sharded.plan.cluster)) for name, step in steps.items()}


@pytest.fixture
def measured(seconds: dict[str, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Plans in the working directory, and the seconds of each on that machine."""
    monkeypatch.chdir(tmp_path)
    written(tmp_path)
    return dict(seconds)


def csv_of(measured: dict[str, float], peak: str = "") -> str:
    head = "plan, seconds" + (", peak_bytes" if peak else "")
    more = f", {peak}" if peak else ""
    return "\n".join([head, *(f"{n}.plan, {s!r}{more}" for n, s in measured.items() if n not in HELD)]) + "\n"


def error(hardware: str, name: str, seconds: float) -> float:
    """Relative error of a layout's step with this hardware file."""
    text = Path(f"{name}.plan").read_text()
    Path("with.plan").write_text(text.replace("model ", f'import "{hardware}"\nmodel ', 1) if hardware else text)
    return abs(examine("with.plan").costed.step.time_s / seconds - 1)


def test_eight_runs_make_a_hardware_file_that_predicts_others(
    measured: dict[str, float], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("runs.csv").write_text(csv_of(measured, peak=f"{60 * 2**30}"))
    assert main(["calibrate", "--from", "runs.csv", "-o", "mine.plan"]) == 0
    out = capsys.readouterr().out
    assert "matmul_efficiency" in out and "64.4 GB" in out and 'import "mine.plan"' in out
    assert "`planc calibrate --from runs.csv` to the step times of 8 runs" in Path("mine.plan").read_text()
    for name in HELD:
        before, after = error("", name, measured[name]), error("mine.plan", name, measured[name])
        assert after < 0.05 < 0.15 < before, name


def test_json_is_read_and_written_and_a_file_of_ones_own_is_fitted_again(
    measured: dict[str, float], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("runs.csv").write_text(csv_of(measured))
    assert main(["calibrate", "--from", "runs.csv", "-o", "mine.plan", "--format", "json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert first["format"] == "planc.calibration/1" and first["probes"] == []
    assert all(abs(s["fitted_s"] / s["measured_s"] - 1) < 0.05 for s in first["steps"])
    assert all(s["before_s"] < s["measured_s"] for s in first["steps"])

    text = Path("tp.plan").read_text().replace("model ", 'import "mine.plan"\nmodel ', 1)
    Path("own.plan").write_text(text)
    Path("runs.json").write_text(json.dumps([{"plan": "own.plan", "seconds": 1.5 * measured["tp"]}]))
    assert main(["calibrate", "--from", "runs.json", "-o", "again.plan", "--format", "json"]) == 0
    (again,) = json.loads(capsys.readouterr().out)["steps"]
    (once,) = (s for s in first["steps"] if s["name"] == "tp.plan")
    assert again["before_s"] == pytest.approx(once["fitted_s"], rel=0.01)
    assert again["before_s"] < again["fitted_s"] <= 1.02 * again["measured_s"]


def test_a_receipt_has_the_seconds_and_the_peak(measured: dict[str, float], capsys: pytest.CaptureFixture[str]) -> None:
    receipt(step_time_s=measured["tp"], peak_memory_gib=40.0).write("tp.json")
    Path("runs.csv").write_text("plan,receipt\ntp.plan,tp.json\n")
    assert main(["calibrate", "--from", "runs.csv"]) == 0
    assert "42.9 GB" in capsys.readouterr().out
    Path("tp.json").write_text("{}")
    assert main(["calibrate", "--from", "runs.csv"]) == 2
    assert "E1020" in capsys.readouterr().out


def test_what_no_run_tells_stays(measured: dict[str, float]) -> None:
    step = step_of(Path("fsdp.plan"), 2 * measured["fsdp"])
    found = calibrate_from(step.sharded.plan.cluster, [step]).found
    moved = {p.name: v / p.prior for p, v in zip(found.parameters, found.values, strict=True)}
    assert moved["chip matmul_efficiency"] < 0.9 and moved["chip float8_efficiency"] == pytest.approx(1.0)
    with pytest.raises(ValueError, match="no steps"):
        calibrate_from(step.sharded.plan.cluster, [])


BAD = {
    "": "it needs a column",
    "plan,seconds\n": "it has no runs",
    "plan,second\ntp.plan,1\n": "unknown column 'second'",
    "plan,plan,seconds\ntp.plan,tp.plan,1\n": "a column is there twice",
    "seconds\n1\n": "it needs a column `plan`",
    "plan,seconds\ntp.plan\n": "1 cells, and the header has 2",
    "plan,seconds\ntp.plan,fast\n": "seconds = fast: not a number above 0",
    "plan,seconds\ntp.plan,-1\n": "seconds = -1: not a number above 0",
    "plan,seconds\ntp.plan,nan\n": "seconds = nan: not a number above 0",
    "plan,seconds\ntp.plan,1e400\n": "not a number above 0",
    "plan,seconds\n,1\n": "a run without a plan",
    "plan,seconds,receipt\ntp.plan,1,tp.json\n": "either `seconds` or a `receipt`",
    "plan,seconds,receipt\ntp.plan,,\n": "either `seconds` or a `receipt`",
    "plan,seconds,peak_bytes\ntp.plan,1,much\n": "peak_bytes = much",
    "plan,seconds\ntp.plan,1\nother.plan,1\n": "other.plan is on v5p, other plans on h100",
    "plan,seconds\n" + "tp.plan,1\n" * 10_001: "more than 10000 runs",
}
BAD_JSON = {
    "{}": "not a list of objects",
    "[1]": "not a list of objects",
    '[{"plan": 3, "seconds": 1}]': "names of files",
    '[{"plan": "tp.plan", "seconds": true}]': "not a number above 0",
    '[{"plan": "tp.plan", "seconds": [1]}]': "not a number above 0",
    '[{"plan": "tp.plan", "seconds": 1': "",
}


@pytest.mark.parametrize(("name", "text", "words"), [
    *(("runs.csv", text, words) for text, words in BAD.items()),
    *(("runs.json", text, words) for text, words in BAD_JSON.items()),
])  # fmt: skip
def test_a_table_that_cannot_be_used_is_refused_with_a_code(
    measured: dict[str, float], capsys: pytest.CaptureFixture[str], name: str, text: str, words: str
) -> None:
    Path("other.plan").write_text(
        "plan other\nmodel llama3_8b\nbatch 64 x 8192 tokens\ncluster tpu_v5p(2x2x2)\nmesh fsdp 8\n"
        "use fsdp over fsdp\ncompute fp32\n"
    )
    Path(name).write_text(text)
    assert main(["calibrate", "--from", name, "-o", "none.plan"]) == 2
    out = capsys.readouterr().out
    assert "E1036" in out and words in out
    assert not Path("none.plan").exists()


def test_a_missing_table_a_missing_plan_and_another_machine_are_refused(
    measured: dict[str, float], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("runs.csv").write_text("plan,seconds\nnone.plan,1\n")
    Path("bytes.csv").write_bytes(b"plan,seconds\n\xff,1\n")
    for words in (["none.csv"], ["bytes.csv"], ["runs.csv"]):
        assert main(["calibrate", "--from", *words]) == 2
        out = capsys.readouterr().out
        assert ("E1036" in out) == (words != ["runs.csv"]) and "error" in out
    Path("runs.csv").write_text("plan,seconds\ntp.plan,1\n")
    for machine in ("a100_node", "nowhere"):
        assert main(["calibrate", "--from", "runs.csv", "--machine", machine]) == 2
        assert "E1036" in capsys.readouterr().out


OWN = """hardware lab
chip      lab(bf16 = 1307 TFLOP/s, fp32 = 163.4 TFLOP/s, memory = 192 GiB, memory_bandwidth = 5.3 TB/s, step = 3 ms)
link      fabric(bandwidth = 448 GB/s, latency = 2 us)
node      lab_node = 8 x lab over fabric
network   lab_ib = leaf 32 at 50 GB/s (latency = 8 us)
"""


def test_peaks_stay_as_they_are_written_and_a_run_far_off_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Runs of a chip without a data sheet, whose peaks a measurement would set. The runs contradict each other."""
    monkeypatch.chdir(tmp_path)
    Path("lab.plan").write_text(OWN)
    text = LAYOUTS["sp"].replace("h100_node", "lab_node").replace("model ", 'import "lab.plan"\nmodel ', 1)
    Path("a.plan").write_text(text + "optimizer adamw\n")
    taken = step_of(Path("a.plan")).predicted_s(examine("a.plan").costed.sharded.plan.cluster)
    Path("runs.csv").write_text(f"plan,seconds\na.plan,{1.5 * taken}\n" + f"a.plan,{4 * taken}\n" * 2)
    assert main(["calibrate", "--from", "runs.csv", "-o", "mine.plan"]) == 0
    out, written = capsys.readouterr().out, Path("mine.plan").read_text()
    assert "stay off by more than 20%: a.plan" in out and "cuda" in out
    for peak in ("bf16 = 1307 TFLOP/s", "fp32 = 163.4 TFLOP/s", "memory_bandwidth = 5.3 TB/s", "at 50 GB/s"):
        assert peak in written, peak
    assert "efficiency = " in written and "e+" not in written


def test_runs_of_machines_with_other_numbers_are_not_one_fit(
    measured: dict[str, float], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("own.plan").write_text(library.machine_text("h100_node").replace("450", "400"))
    text = Path("tp.plan").read_text().replace("model ", 'import "own.plan"\nmodel ', 1)
    Path("other.plan").write_text(text)
    Path("runs.csv").write_text("plan,seconds\ntp.plan,1\nother.plan,1\n")
    assert main(["calibrate", "--from", "runs.csv"]) == 2
    out = capsys.readouterr().out
    assert "E1036" in out and "whose numbers are not those" in " ".join(out.split())


def test_a_torus_keeps_its_shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices of one chip in two shapes: one wraps around, the other does not."""
    monkeypatch.chdir(tmp_path)
    body = "use fsdp over fsdp\noptimizer adamw\n"
    for name, shape, devices in (("cube", "4x4x4", 64), ("flat", "2x2x4", 16)):
        head = HEAD.replace("8 x h100_node", f"tpu_v5p({shape})").replace("fsdp 8 > tp 8", f"fsdp {devices}")
        Path(f"{name}.plan").write_text(head + body)
    found = {n: examine(f"{n}.plan").costed for n in ("cube", "flat")}
    declared = found["cube"].sharded.plan.cluster
    for name, costed in found.items():
        assert MeasuredStep.of(name, costed, 1.0).predicted_s(declared) == pytest.approx(costed.step.time_s, rel=1e-12)
