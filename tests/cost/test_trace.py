"""The trace is the report's step: same seconds, no rank in two places at once."""

import itertools
import json
import pickle
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from planc.cli import main
from planc.costing.step.trace import trace
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
compute   fp32
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
    """Complete events with a name, category, start and length, process and thread; names of rows; arrows; counters."""
    made = traced(ROOT / "plans/llama3_70b_h100.plan", tmp_path / "deep" / "trace.json")
    assert set(made) == {"traceEvents", "displayTimeUnit", "otherData"}
    assert made["displayTimeUnit"] in ("ms", "ns")
    for event in made["traceEvents"]:
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name", "thread_sort_index")
        elif event["ph"] == "C":
            assert set(event) == {"name", "ph", "pid", "tid", "ts", "args"} and min(event["args"].values()) >= 0
        elif event["ph"] in "sf":
            assert event["name"] in ("activations", "gradients of activations") and event["cat"] == "send"
        else:
            assert event["ph"] == "X" and event["cat"] in PARTS and event["dur"] > 0 <= event["ts"]
            assert set(event) == {"name", "cat", "ph", "ts", "dur", "pid", "tid", "args"}
    rows = [e["args"]["name"] for e in made["traceEvents"] if e["name"] == "thread_name"]
    assert rows == [f"rank {r}: stage {r}" for r in range(4)]


@pytest.mark.parametrize("schedule", ["interleaved_1f1b", "zbv", "dualpipe"])
def test_arrows_lead_from_what_sends_to_what_receives(tmp_path: Path, schedule: str) -> None:
    """Each lies in a span of the sender and one of the receiver on another rank, and never goes back in time."""
    path = tmp_path / "example.plan"
    path.write_text(PLAN.format(schedule=schedule))
    made = traced(path, tmp_path / "trace.json")["traceEvents"]
    spans: dict[int, list[tuple[float, float, dict[str, int]]]] = {}
    for e in made:
        if e["ph"] == "X":
            spans.setdefault(e["tid"], []).append((e["ts"], e["ts"] + e["dur"], e["args"]))
    starts, ends = ({e["id"]: e for e in made if e["ph"] == phase} for phase in "sf")
    assert starts.keys() == ends.keys()
    rank_of = {(a["stage"], a["microbatch"]): tid for tid, mine in spans.items() for *_, a in mine if "stage" in a}
    assert len(starts) == 2 * sum(tid != rank_of.get((s + 1, m), tid) for (s, m), tid in rank_of.items()) > 0
    for number, sent in starts.items():
        received = ends[number]
        places = [_span_at(spans[e["tid"]], e["ts"]) for e in (sent, received)]
        step = 1 if sent["name"] == "activations" else -1
        assert places[0]["microbatch"] == places[1]["microbatch"]
        assert places[1]["stage"] - places[0]["stage"] == step and sent["tid"] != received["tid"]
        assert sent["ts"] < received["ts"] and received["bp"] == "e"


def _span_at(spans: list[tuple[float, float, dict[str, int]]], ts: float) -> dict[str, int]:
    return next(args for start, end, args in spans if start <= ts < end)


@pytest.mark.parametrize("name", ["tiny", "llama3_70b_h100", "field/llama3_8b_uneven"])
def test_memory_over_the_step_is_the_report_s(tmp_path: Path, name: str) -> None:
    """Counters of the trace, and allocations of the snapshot as torch's own viewer reads it."""
    path, out = ROOT / "plans" / f"{name}.plan", tmp_path / "x.pickle"
    costed = examine(path).costed
    assert costed is not None
    wanted = [s.per_device_gib.total - s.per_device_gib.reserve for s in costed.memory.stages]
    counters: dict[int, list[float]] = {}
    for e in trace(costed)["traceEvents"]:
        if e["ph"] == "C":
            counters.setdefault(e["tid"], []).append(sum(e["args"].values()))
    assert [max(counters[rank]) for rank in range(len(wanted))] == pytest.approx(wanted, rel=1e-6)
    assert main(["report", str(path), "--memory-snapshot", "-o", str(out)]) == 0
    made = pickle.loads(out.read_bytes())
    peaks = [max(accumulate(SIGN.get(e["action"], 0) * e["size"] for e in mine)) for mine in made["device_traces"]]
    assert [p / 2**30 for p in peaks] == pytest.approx(wanted, rel=1e-4, abs=1e-5)


SIGN = {"alloc": 1, "free_completed": -1}


def test_torch_s_memory_viewer_reads_the_snapshot(tmp_path: Path) -> None:
    """The functions of `torch.cuda._memory_viz`; the sentence of the plan stands where a stack frame would."""
    from torch.cuda import _memory_viz as viewer

    out = tmp_path / "x.pickle"
    assert main(["report", str(ROOT / "plans" / "llama3_70b_h100.plan"), "--memory-snapshot", "-o", str(out)]) == 0
    made = pickle.loads(out.read_bytes())
    assert "total_allocated" in viewer.segsum(made) and "# free completed" in viewer.trace(made)
    flames = viewer.memory(made, format_flamegraph=str)
    assert "recompute attention.core" in flames and "activations of microbatch" in flames
    assert len(viewer.trace_plot(made)) > 1_000
    assert len(viewer.segment_plot(made)) > 1_000


def test_a_snapshot_is_written_into_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(ROOT / "plans" / "tiny.plan"), "--memory-snapshot"]) == 2
    assert "--memory-snapshot needs -o FILE" in capsys.readouterr().err


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


def test_spans_are_named_by_the_plan_s_sentences(tmp_path: Path) -> None:
    made = traced(ROOT / "plans/llama3_70b_h100.plan", tmp_path / "trace.json")
    spans = {e["name"]: e["args"] for e in made["traceEvents"] if e["ph"] == "X" and e["tid"] == 1}
    assert "1B0 recompute: llama3_70b_h100.plan:15  recompute attention.core" in spans
    assert "optimizer: llama3_70b_h100.plan:10  store params, optimizer over fsdp" in spans
    sent = "send_recv of activations over pp, {}: llama3_70b_h100.plan:12  split layers over pp as 1f1b"
    assert sent.format("forward") in spans["1F0 transfers"]["transfers"]
    assert sent.format("backward") in spans["1B0 transfers"]["transfers"]
    assert spans["1F0 forward"] == {"stage": 1, "microbatch": 0}
