"""`planc diff` and `planc sweep` as a user meets them."""

import json
from pathlib import Path

import pytest

from planc.cli import main
from tests.plans import BODY, HEAD, ROOT

H100, V5P, TINY = (str(ROOT / f"plans/{name}.plan") for name in ("llama3_70b_h100", "llama3_70b_v5p", "tiny"))


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    try:
        status = main(list(words))
    except SystemExit as stop:
        status = int(stop.code or 0)
    captured = capsys.readouterr()
    assert "Traceback" not in captured.out + captured.err
    return status, captured.out, captured.err


def test_diff_shows_what_differs(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "diff", V5P, H100)
    assert status == 1
    for word in ("mesh", "step", "memory", "all_gather", "shards", "losses are not comparable", "checkpoint"):
        assert word in out, word


def test_diff_of_a_plan_and_itself(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "diff", TINY, TINY, "--format", "json")
    found = json.loads(out)
    assert status == 0 and found["format"] == "planc.diff/1" and found["changes"] == []
    assert found["losses"] == {"comparable": True, "apart": []}
    assert found["checkpoint"]["moved_bytes"] == 0
    assert "the same" in run(capsys, "diff", TINY, TINY)[1]


def test_diff_of_clusters_and_of_params(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "diff", H100, "--cluster", "nodes x a100_node", "--format", "json")
    assert status == 1 and {c["name"] for c in json.loads(out)["changes"]} >= {"cluster", "chip", "time_s"}
    status, out, _ = run(capsys, "diff", H100, "--to", "nodes=128", "--format", "json")
    found = json.loads(out)
    mesh = next(c for c in found["changes"] if c["name"] == "mesh")
    assert mesh["b"] == "pp 4 > fsdp 32 > tp 8" and found["checkpoint"]["moved_bytes"] > 0
    status, out, _ = run(capsys, "diff", H100, "--to", "nodes=128", "--set", "nodes=128", "--format", "json")
    assert status == 0


@pytest.mark.parametrize("target", ["cuda", "xla"])
def test_diff_of_what_a_target_makes(capsys: pytest.CaptureFixture[str], target: str, tmp_path: Path) -> None:
    other = tmp_path / "dp.plan"
    other.write_text(Path(TINY).read_text().replace("use       sp   over tp\n", ""))
    status, out, _ = run(capsys, "diff", TINY, str(other), "--target", target, "--format", "json")
    found = json.loads(out)
    assert status == 1 and found["target"] == target and found["losses"]["comparable"]
    assert found["checkpoint"]["moved_bytes"] == 0, "sequence parallelism stores nothing elsewhere"


def test_diff_says_what_it_was_not_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(capsys, "diff", H100)[0] == 2
    bad = tmp_path / "bad.plan"
    bad.write_text(HEAD.replace("tp 8", "tp 9") + BODY)
    status, out, _ = run(capsys, "diff", H100, str(bad))
    assert status == 1 and "E0203" in out
    status, out, _ = run(capsys, "diff", H100, str(bad), "--format", "json")
    assert status == 1 and json.loads(out)["diagnostics"][0]["code"] == "E0203"
    status, out, _ = run(capsys, "diff", H100, "--cluster", "7 x nothing_node")
    assert status == 1 and "E0108" in out
    status, out, _ = run(capsys, "diff", str(tmp_path / "none.plan"), "--cluster", "8 x h100_node")
    assert status == 2 and "E0104" in out
    bad.write_text("plan x\nmodel llama3_8b\n")
    status, _, err = run(capsys, "diff", str(bad), "--cluster", "8 x h100_node")
    assert status == 2 and "no `cluster` sentence" in err


def test_sweep_prints_a_table_and_a_plot(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "sweep", H100, "--over", "devices=256..1024")
    assert status == 0
    for word in ("step", "MFU", "GiB", "tokens/s/device", "exposed", "1,024", "* MFU", "= together"):
        assert word in out, word


def test_sweep_writes_files(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    outputs = [tmp_path / f"x{suffix}" for suffix in (".svg", ".csv", ".json")]
    words = [word for path in outputs for word in ("-o", str(path))]
    status, out, _ = run(capsys, "sweep", TINY, "--over", "batch=8,16", "--format", "json", *words)
    found = json.loads(out)
    assert status == 0 and found["format"] == "planc.sweep/1"
    assert [row["value"] for row in found["rows"]] == [8, 16]
    assert outputs[0].read_text().startswith("<svg") and json.loads(outputs[2].read_text()) == found
    lines = outputs[1].read_text().splitlines()
    assert lines[0].startswith("value,devices,time_s") and float(lines[1].split(",")[2]) == found["rows"][0]["time_s"]


def test_sweep_says_why_not(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status, out, _ = run(capsys, "sweep", H100, "--over", "tp=16,32")
    assert status == 1 and "E0301" in out
    assert run(capsys, "sweep", H100, "--over", "nonsense=3")[0] == 2
    assert run(capsys, "sweep", H100, "--over", "devices")[0] == 2
    assert run(capsys, "sweep", H100, "--over", "tp=8", "-o", "x.png")[0] == 2
    status, out, _ = run(capsys, "sweep", str(tmp_path / "none.plan"), "--over", "tp=8")
    assert status == 2 and "E0104" in out
    bad = tmp_path / "bad.plan"
    bad.write_text("plan x\nmodel nonsense\n")
    status, out, _ = run(capsys, "sweep", str(bad), "--over", "batch=8", "--format", "json")
    assert status == 1 and json.loads(out)["diagnostics"]
