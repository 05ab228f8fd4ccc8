"""The page of a training run: every number from its metrics file, and files of strangers refused or escaped."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from planc.cli import main
from planc.report.run_page import MOST_POINTS, RunError, run_page
from tests.cli.schemas import valid
from tests.report.pages import read

PREDICTED = {"step_time_s": 0.2, "memory_gib": 0.4, "mfu": 0.5, "tokens_per_s": 5_000.0, "goodput": 0.9}
Records = list[dict[str, Any]]


def step(n: int, at_s: float, seconds: float = 0.25, **more: Any) -> dict[str, Any]:
    figures = {"loss": 8 / n, "tokens_per_s": 4_000.0, "mfu": 0.4, "memory_gib": 0.41, "step_s": seconds, "data_s": 0.0}
    return {"time": at_s, "kind": "step", "step": n, "steps": 20, "grad_norm": 1.0, "lr": 1e-3, **figures, **more}


def start(at_s: float, done: int) -> dict[str, Any]:
    facts = {"plan_sha256": "ab" * 32, "target": "cuda", "devices": 4, "tokens_per_step": 1_000}
    return {"time": at_s, "kind": "start", **facts, "done": done, "predicted": PREDICTED}


def a_run() -> Records:
    """Ten steps and a save, a kill, and from the save on to step 20; a step is taken twice."""
    first = [step(n, 100 + 0.25 * n) for n in range(1, 12)]
    saved = {"time": 102.75, "kind": "saved", "step": 10, "stall_s": 0.1, "write_s": 0.5}
    second = [step(n, 110 + 0.25 * (n - 10)) for n in range(11, 21)]
    held = {"time": 112.6, "kind": "held_out", "step": 20, "loss": 0.9}
    return [
        start(99.0, 0),
        *first,
        saved,
        start(109.0, 10),
        *second,
        held,
        {"time": 113.0, "kind": "end", "why": "done"},
    ]


def written(folder: Path, records: Records) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(r)}\n" for r in records))
    return folder


def test_the_page_has_the_run_s_numbers(tmp_path: Path) -> None:
    page = run_page(written(tmp_path / "my_run", a_run()), "planc report my_run")
    assert page.title == "my_run: 20 of 20 steps, done"
    assert page.losses.train.values[-1] == 0.4 and page.losses.held_out.values == (0.9,)
    assert page.losses.starts == (10,) and len(page.losses.train.steps) == 20
    assert page.speed.series.predicted == 5_000 and page.speed.series.usual == 4_000
    found = {row.name: (row.predicted, row.measured, round(row.error, 3)) for row in page.compared.rows}
    assert found["step"] == (0.2, 0.25, -0.2) and found["tokens/s"] == (5_000, 4_000, 0.25)
    assert found["memory"] == (0.4, 0.41, -0.024) and set(found) >= {"MFU", "goodput"}
    good = page.goodput
    parts = (good.productive_s, good.redone_s, good.checkpoint_s, good.restart_s, good.stall_s)
    assert sum(parts) == pytest.approx(good.wall_s) == 14.0 and good.productive_s == 5.0 and good.redone_s == 0.25
    assert [e.what.split()[0] for e in page.events] == ["started", "saved", "started", "ended:"]


def test_the_command_writes_every_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, out = str(written(tmp_path / "run", a_run())), tmp_path / "run.html"
    assert main(["report", run, "-o", str(out)]) == 0
    page = read(out.read_text())
    assert out.stat().st_size < 200_000 and len(page.of("svg")) >= 8, "each of four pictures wide and narrow"
    assert {0.4, 4_000.0, 0.25, 5_000.0, 0.2} <= page.numbers()
    assert main(["report", run, "--view", "losses", "-o", str(tmp_path / "losses.svg")]) == 0
    assert main(["report", f"{run}/metrics.jsonl", "-o", str(tmp_path / "run.json")]) == 0
    assert valid(json.loads((tmp_path / "run.json").read_text())) == "planc.report.run/1"
    capsys.readouterr()
    assert main(["report", run, "--view", "timeline", "-o", "x.svg"]) == 2
    assert "losses" in capsys.readouterr().err


def test_a_long_run_keeps_its_highest_and_lowest_points(tmp_path: Path) -> None:
    records = [start(0.0, 0), *(step(n, 0.25 * n) for n in range(1, 5_001))]
    records[2_000]["loss"] = 99.0
    page = run_page(written(tmp_path / "run", records), "")
    series = page.losses.train
    assert len(series.steps) <= MOST_POINTS + 2 and 99.0 in series.values and list(series.steps) == sorted(series.steps)
    assert page.verdict.headline.endswith("still running, or cut off")


@pytest.mark.parametrize(
    "change",
    [
        lambda r: r.clear(),
        lambda r: r.__delitem__(slice(0, 14)),
        lambda r: r[1].update(step="many"),
        lambda r: r[1].update(loss="<script>"),
        lambda r: r[0].pop("target"),
        lambda r: r[13].update(predicted=[1]),
        lambda r: r[13].update(predicted={"tokens_per_s": "x"}),
        lambda r: r[12].update(stall_s=None),
        lambda r: r[5].update(step_s={}),
    ],
)
def test_what_planc_did_not_write_is_refused(tmp_path: Path, change: Callable[[Records], Any]) -> None:
    records = a_run()
    change(records)
    with pytest.raises(RunError):
        run_page(written(tmp_path / "run", records), "")
    assert main(["report", str(tmp_path / "run"), "-o", str(tmp_path / "x.html")]) == 2
    assert not (tmp_path / "x.html").exists()


def test_words_of_strangers_are_text(tmp_path: Path) -> None:
    """A reason, a target and a folder's name that hold markup, terminal sequences and marks that turn text."""
    records = a_run()
    records[-1]["why"] = records[0]["target"] = "<script>alert(1)</script>\x1b[2J\u202e"
    out = tmp_path / "x.html"
    assert main(["report", str(written(tmp_path / "<img src=x>", records)), "-o", str(out)]) == 0
    text = out.read_text()
    assert "<script>alert" not in text and "<img" not in text and not {"\x1b", "\u202e"} & set(text)


def test_a_folder_without_one_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path), "-o", str(tmp_path / "x.html")]) == 2
    assert "no metrics files" in capsys.readouterr().err
    for name in ("a", "b"):
        (tmp_path / f"{name}.metrics.jsonl").write_text("")
    assert main(["report", str(tmp_path), "-o", str(tmp_path / "x.html")]) == 2
    assert "2 metrics files: a.metrics.jsonl, b.metrics.jsonl" in capsys.readouterr().err


def test_a_long_run_of_many_starts_is_a_page(tmp_path: Path) -> None:
    """Steps that were taken twice, in linear time; a line of numbers that nobody means is no line."""
    records = [r for n in range(1, 4_001) for r in (*([start(99.0 + n, n - 1)] if n % 2 else []), step(n, 100.0 + n))]
    folder = written(tmp_path / "run", records)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"time": 1' + "0" * 400 + ', "kind": "step", "step": 1}\n')
        file.write('{"time": 1, "kind": "step", "step": 1' + "0" * 400 + "}\n")
    began = time.process_time()
    page = run_page(folder, "")
    assert time.process_time() - began < 3.0
    assert page.losses.train.steps[-1] == 4_000 and len(page.losses.starts) <= 100
