"""The trace is the report's step: same seconds, no rank in two places at once."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from planc.cli import main
from planc.driver import examine
from tests.plans import ROOT
from tests.schedules.splits import NAMES

PLAN = """plan example
model     llama3_8b
batch     64 x 1024 tokens microbatch 1
cluster   1 x h100_node
mesh      pp 4 > fsdp 2
use       fsdp over fsdp
split     layers over pp as {schedule}
recompute blocks
"""
PARTS = ("compute", "recompute", "exposed_comm", "optimizer", "offload", "overhead")


def traced(path: Path, out: Path) -> dict[str, Any]:
    assert main(["report", str(path), "--trace", "-o", str(out)]) == 0
    return json.loads(out.read_text())


@pytest.mark.parametrize("schedule", NAMES)
def test_the_spans_of_the_slowest_rank_are_the_report_s_seconds(tmp_path: Path, schedule: str) -> None:
    path = tmp_path / "example.plan"
    path.write_text(PLAN.format(schedule=schedule))
    costed = examine(path).costed
    assert costed is not None
    events = [e for e in traced(path, tmp_path / "trace.json")["traceEvents"] if e["ph"] == "X"]
    mine = [e for e in events if e["tid"] == costed.slowest]
    for part in PARTS:
        seconds = sum(e["dur"] for e in mine if e["cat"] == part) / 1e6
        assert seconds == pytest.approx(getattr(costed.step, f"{part}_s"), abs=1e-9), part
    end = max(e["ts"] + e["dur"] for e in mine) / 1e6
    assert end == pytest.approx(costed.step.time_s)
    assert end - sum(e["dur"] for e in mine) / 1e6 == pytest.approx(costed.step.bubble_s, abs=1e-9)


@pytest.mark.parametrize("schedule", NAMES)
def test_no_rank_is_in_two_places_at_once(tmp_path: Path, schedule: str) -> None:
    path = tmp_path / "example.plan"
    path.write_text(PLAN.format(schedule=schedule))
    made = traced(path, tmp_path / "trace.json")
    for rank in range(4):
        mine = sorted((e["ts"], e["dur"]) for e in made["traceEvents"] if e["ph"] == "X" and e["tid"] == rank)
        assert len(mine) > 16
        assert all(a + dur <= b + 1e-3 for (a, dur), (b, _) in itertools.pairwise(mine))


def test_the_format_is_that_of_trace_viewers(tmp_path: Path) -> None:
    """Complete events with a name, category, start and length, process and thread; names of rows; nothing else."""
    made = traced(ROOT / "plans/llama3_70b_h100.plan", tmp_path / "deep" / "trace.json")
    assert set(made) == {"traceEvents", "displayTimeUnit", "otherData"}
    assert made["displayTimeUnit"] in ("ms", "ns")
    for event in made["traceEvents"]:
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name", "thread_sort_index")
        else:
            assert event["ph"] == "X" and event["cat"] in PARTS and event["dur"] > 0 <= event["ts"]
            assert set(event) == {"name", "cat", "ph", "ts", "dur", "pid", "tid", "args"}
    rows = [e["args"]["name"] for e in made["traceEvents"] if e["name"] == "thread_name"]
    assert rows == [f"rank {r}: stage {r}" for r in range(4)]


def test_a_plan_without_a_pipeline_has_one_row(tmp_path: Path) -> None:
    made = traced(ROOT / "plans/tiny.plan", tmp_path / "trace.json")
    assert {e["tid"] for e in made["traceEvents"]} == {0}


def test_standard_output_is_the_trace_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(ROOT / "plans/tiny.plan"), "--trace"]) == 0
    assert json.loads(capsys.readouterr().out)["otherData"]["plan"] == "tiny"


def test_a_plan_with_mistakes_has_no_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "example.plan"
    path.write_text(PLAN.format(schedule="zbw"))
    assert main(["report", str(path), "--trace", "--format", "json"]) == 1
    assert [d["code"] for d in json.loads(capsys.readouterr().out)["diagnostics"]] == ["E0108"]


def test_a_trace_that_no_viewer_opens_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "example.plan"
    path.write_text(PLAN.format(schedule="1f1b").replace("64 x", "64000 x"))
    assert main(["report", str(path), "--trace"]) == 2
    assert "4 stages x 32000 microbatches make 384,000 actions" in capsys.readouterr().err
