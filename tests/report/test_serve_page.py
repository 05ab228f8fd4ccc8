"""The page of a serve plan and the differences of two: the figures of the report, and every byte in the picture."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from planc.cli import main
from planc.cli.schemas import schema
from planc.compare.serve_diff import serve_diff
from planc.driver.serving import ServeExamined, examine_serve
from planc.report.render import as_json, html, picture_file
from planc.report.serve_page import SERVE_VIEWS, ServePage, serve_page
from tests.plans import ROOT
from tests.report.pages import read
from tests.report.test_plan_page import MOST_BYTES, harmless

SERVE = ROOT / "plans" / "serve"
NAMES = ("qwen3_8b_apart", "qwen3_8b_colocated", "qwen3_235b_a22b_apart")


@pytest.fixture(scope="module")
def examined() -> dict[str, ServeExamined]:
    return {name: examine_serve(SERVE / f"{name}.plan") for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_the_page_has_every_byte_of_the_sync(examined: dict[str, ServeExamined], name: str) -> None:
    report = examined[name].report
    page = serve_page(examined[name], "planc report it.plan")
    assert report.sync is not None and report.memory is not None
    for nodes in (page.flow.senders, page.flow.receivers):
        assert sum(n.far_bytes for n in nodes) == pytest.approx(report.sync.far_bytes)
        assert sum(n.near_bytes for n in nodes) == pytest.approx(report.sync.near_bytes)
    assert sum(t.far_bytes for t in page.tensors) == pytest.approx(report.sync.far_bytes)
    totals = [sum(row.parts_gib) * 2**30 for row in page.memory.rows]
    peaks = report.peaks
    if peaks is None:
        held = report.memory
        assert totals == [pytest.approx(held.weights.total + held.activations + held.other + held.cache)]
    else:
        assert totals == [pytest.approx(sum(peaks.training)), pytest.approx(sum(peaks.serving))]
    text = html(page)
    shown = read(text)
    assert shown.wrong == [] and len(text) < MOST_BYTES
    assert list(shown.sections) == [v.name for v in SERVE_VIEWS]
    assert shown.values["flow", "receives"] == [n.far_bytes for n in page.flow.receivers]
    harmless(text)
    assert ServePage.model_validate_json(as_json(page)) == page
    Draft202012Validator(schema("planc.report.serve/1")).validate(json.loads(as_json(page)))
    drawn = picture_file(page, "flow") or ""
    bands = drawn.count('class="far-flow"')
    assert bands == sum(bool(n.far_bytes) for n in (*page.flow.senders, *page.flow.receivers))


def test_differences_are_those_of_the_reports(examined: dict[str, ServeExamined]) -> None:
    apart, colocated = examined["qwen3_8b_apart"], examined["qwen3_8b_colocated"]
    assert serve_diff(apart, apart, names=("a", "a")).changes == ()
    found = serve_diff(apart, colocated, names=("a", "b"))
    told = {c.name: (c.a, c.b) for c in found.changes}
    syncs = [one.report.sync for one in (apart, colocated)]
    assert told["sync"] == tuple(s.seconds for s in syncs if s)
    assert told["mesh"] == ("dp 4 > tp 2", "dp 8")
    assert told["both sides while training"][0] is None
    assert found.checkpoint is not None and found.checkpoint.moved_bytes == 0, "both have one training plan"


def test_what_a_serve_plan_has_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    served, trained = str(SERVE / "qwen3_8b_apart.plan"), str(SERVE / "qwen3_8b.plan")
    assert main(["diff", served, trained]) == 2
    assert "a serve plan is compared with a serve plan" in capsys.readouterr().err
    assert main(["report", served, "--trace"]) == 2
    assert main(["report", served, "--view", "timeline", "-o", str(tmp_path / "a.html")]) == 2
    assert main(["report", served, "-o", str(tmp_path / "a.html")]) == 0
