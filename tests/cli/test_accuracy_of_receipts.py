"""`planc report --accuracy`: predicted beside measured."""

import json
from pathlib import Path

import pytest

from planc.cli import main

RECEIPT = {
    "target": "cuda",
    "losses": [5.0],
    "step_time_s": 0.2,
    "peak_memory_gib": None,
    "measured": {"step_time_s": 0.2},
    "predicted": {"step_time_s": 0.25, "memory_gib": 0.5},
}


def written(folder: Path, name: str, **changes: object) -> str:
    path = folder / name
    path.write_text(json.dumps({**RECEIPT, **changes}))
    return str(path)


def test_errors_are_collected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = written(tmp_path, "one.json")
    two = written(tmp_path, "two.json", step_time_s=0.5, peak_memory_gib=0.4)
    assert main(["report", "--accuracy", one, two, "--format", "json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["median_abs_error"] == pytest.approx({"step_time_s": 0.375, "memory_gib": 0.25})
    assert [row["error"] for row in facts["rows"]] == [
        pytest.approx(0.25),
        None,
        pytest.approx(-0.5),
        pytest.approx(0.25),
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {"predicted": {"step_time_s": "x"}},
        {"step_time_s": [1]},
        {"step_time_s": 10**400},
        {"predicted": {"step_time_s": float("nan")}},
        {"predicted": {"memory_gib": 1e-320}},
    ],
)
def test_figures_that_are_no_numbers_are_answered(tmp_path: Path, changes: dict[str, object]) -> None:
    assert main(["report", "--accuracy", written(tmp_path, "one.json", **changes)]) == 2


def test_a_figure_that_was_not_predicted_is_no_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, "one.json", predicted={"step_time_s": 0.25, "memory_gib": None})
    assert main(["report", "--accuracy", path]) == 0
    assert "memory_gib" not in capsys.readouterr().out


def test_what_was_not_measured_has_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--accuracy", written(tmp_path, "one.json")]) == 0
    out = capsys.readouterr().out
    assert "+25.0 %" in out and "median error of step_time_s: 25.0 %" in out and "memory_gib:" not in out


@pytest.mark.parametrize("text", ["{", "[]", '{"plan": 1}'])
def test_another_file_is_no_receipt(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    (tmp_path / "other.json").write_text(text)
    assert main(["report", "--accuracy", str(tmp_path / "other.json")]) == 2
    assert "other.json" in capsys.readouterr().err
