"""The page of a plan: whole and alone, every string escaped, its numbers those of its data and of `planc check`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from functools import cache
from itertools import combinations
from math import isclose
from pathlib import Path
from shutil import which

import pytest

from planc.cli import main
from planc.costing.step.trace import trace
from planc.driver import examine
from planc.picture.marks import NARROW, WIDE, Text, text_px
from planc.report.plan_page import PlanPage, plan_page
from planc.report.render import PLAN_VIEWS, as_json, html, picture_file
from planc.report.views import roofline
from tests.plans import ROOT
from tests.report.pages import Read, read
from tests.report.questions import questions

FOLDERS = {"plans": "", "field": "", "presets": "preset "}
FILES = [p for p in (ROOT / "plans").rglob("*.plan") if p.parent.name in FOLDERS]
PLANS = {FOLDERS[p.parent.name] + p.stem: p for p in FILES}
FEW = ("tiny", "llama3_70b_h100", "deepseek_v3_h800", "llama3_70b_v5p")
MOST_BYTES = 500_000
REPORTED = "llama3_70b_h100"
OF_GRAPHS = "links"
"""The view that pages of plans on machines written as links alone have."""


@cache
def page_of(name: str) -> PlanPage:
    return plan_page(examine(PLANS[name]), f"planc report {name}.plan -o report.html")


@cache
def read_of(name: str) -> Read:
    return read(html(page_of(name)))


def whole(name: str) -> None:
    is_whole(page_of(name), {v.name for v in PLAN_VIEWS} - {OF_GRAPHS})


def is_whole(made: PlanPage, views: set[str]) -> None:
    """A page is below its size, well formed, asks nobody for anything, and each of its views says and shows
    something."""
    text = html(made)
    assert len(text.encode()) < MOST_BYTES
    page = read(text)
    assert page.wrong == []
    addresses = [
        v for e in page.elements for k, v in e.attributes.items() if k in ("href", "src", "xlink:href", "action")
    ]
    assert addresses and all(a.startswith("#") for a in addresses)
    assert re.findall(r"url\(|@import|https?://(?!www\.w3\.org/2000/svg)", text) == []
    ids = [e.attributes["id"] for e in page.elements if "id" in e.attributes]
    assert sorted(ids) == sorted(set(ids)) and {a[1:] for a in addresses} <= set(ids)
    assert list(page.sections) == [v.name for v in PLAN_VIEWS if v.name in views] and min(page.sections.values()) > 20
    assert {e.attributes["role"] for e in page.of("svg")} == {"img"}
    assert all(len(e.attributes["aria-label"]) > 40 for e in page.of("svg"))


@pytest.mark.parametrize("name", FEW)
def test_a_page_is_whole(name: str) -> None:
    whole(name)


def _seldom(name: str) -> pytest.MarkDecorator:
    often = not name.startswith("preset ") or name.endswith(("deepseek_v3_h100", "llama3_405b_h100"))
    return pytest.mark.long if often else pytest.mark.slow


@pytest.mark.parametrize("name", [pytest.param(n, marks=_seldom(n)) for n in sorted(set(PLANS) - set(FEW))])
def test_the_page_of_every_plan_is_whole_and_true(name: str) -> None:
    whole(name)
    true(name)


def true(name: str) -> None:
    """Numbers of the page are those of its data, and sum to what `planc check` reports."""
    page, report = page_of(name), examine(PLANS[name]).report
    cells = read_of(name).values
    assert report.step and report.memory and report.collectives and page.memory and page.timeline and page.traffic
    for stage, shown in zip(report.memory.stages, page.memory.stages, strict=True):
        assert isclose(sum(shown.parts_gib.values), stage.per_device_gib.total, rel_tol=1e-9)
    totals = cells["memory", "total"]
    assert totals == [s.total_gib for s in page.memory.stages]
    parts = [cells["memory", part] for part in type(page.memory.stages[0].parts_gib).model_fields]
    assert all(
        isclose(sum(row), total, rel_tol=1e-9) for row, total in zip(zip(*parts, strict=True), totals, strict=True)
    )
    assert isclose(sum(cells["parts", "seconds"]), report.step.time_s, rel_tol=1e-9)
    mine = [r for r in report.collectives if r.row.stage == page.traffic.stage]
    assert isclose(sum(cells.get(("traffic", "payload"), [0])), sum(r.row.payload_bytes for r in mine), rel_tol=1e-9)
    assert isclose(sum(cells.get(("traffic", "exposed"), [0])), report.step.exposed_comm_s, rel_tol=1e-6, abs_tol=1e-9)
    assert page.sentences and page.over_step
    assert isclose(sum(cells["sentences", "seconds"]), report.step.time_s, rel_tol=1e-9)
    assert isclose(sum(cells["sentences", "gib"]), report.memory.worst.per_device_gib.total, rel_tol=1e-9)
    curve, most = page.over_step, report.memory.worst.per_device_gib.total
    highest = max(a + w for a, w in zip(curve.activations_gib, curve.working_gib, strict=True)) + curve.steady_gib
    assert isclose(highest, most, abs_tol=2e-4)


@pytest.mark.parametrize("name", FEW)
def test_sums_of_a_page_are_those_of_its_data_and_of_the_report(name: str) -> None:
    true(name)


def test_the_ten_questions_are_answered_by_the_page() -> None:
    shown = read_of(REPORTED).numbers()
    asked = questions()
    assert len(asked) == 10
    for ask, _, numbers in asked:
        for number in numbers:
            near = max(0.0, abs(number) * 0.006) if isinstance(number, float) else 0
            assert any(abs(n - number) <= near for n in shown), (ask, number)


def test_the_fullest_moment_is_in_the_action_that_it_names() -> None:
    page = page_of(REPORTED)
    assert page.over_step is not None and page.timeline is not None
    row = page.timeline.ranks[page.over_step.stage]
    starts = [s for s, letter in zip(row.start_us, row.actions, strict=True) if letter == "B"]
    assert "backward" in page.over_step.peak_at
    assert isclose(page.over_step.peak_s, starts[0] / 1e6, abs_tol=1e-5)


def test_what_a_rank_waits_is_what_its_actions_leave_of_the_step() -> None:
    timeline = page_of(REPORTED).timeline
    assert timeline is not None
    for rank in timeline.ranks:
        assert isclose(rank.waits_s + sum(rank.length_us) / 1e6, timeline.makespan_s, abs_tol=1e-3)
    bubble = next(p.seconds for p in timeline.parts if p.part == "bubble")
    assert isclose(timeline.ranks[timeline.slowest].waits_s, bubble, rel_tol=0.01)


def test_a_plan_says_how_its_expectations_go() -> None:
    lines = page_of(REPORTED).sentences
    assert lines is not None
    outcomes = [line.expects for line in lines.lines if line.text.startswith("expect")]
    assert outcomes == [f"holds: {lines.total_gib:.1f} GiB", "holds: 8.1%"]


def test_changes_that_change_nothing_are_no_neighbours() -> None:
    found = page_of(REPORTED).neighbours
    assert found is not None and "divide gradients over fsdp too" in found.idle
    assert all(abs(n.delta_s) > 0 or abs(n.delta_gib) > 0 for n in found.found)


def test_json_and_pictures_are_of_the_same_data() -> None:
    page = page_of("tiny")
    assert PlanPage.model_validate_json(as_json(page)) == page
    assert json.loads(as_json(page, "memory"))["data"] == json.loads(as_json(page))["memory"]
    sheet = picture_file(page)
    assert sheet is not None
    root = ElementTree.fromstring(sheet)
    assert len(root.findall("{http://www.w3.org/2000/svg}svg")) == sum(
        v.picture is not None for v in PLAN_VIEWS if v.name != OF_GRAPHS
    )
    assert picture_file(page, "accuracy") is None


def test_a_view_that_a_plan_does_not_have_is_said_to_be_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    assert main(["report", str(PLANS["tiny"]), "--view", OF_GRAPHS, "-o", str(page)]) == 2
    assert "--view links: here is nothing of it to show" in capsys.readouterr().err and not page.exists()


@pytest.mark.parametrize("view", [v.name for v in PLAN_VIEWS if v.name != OF_GRAPHS])
def test_one_view_alone(view: str) -> None:
    page = read(html(page_of("tiny"), view))
    assert list(page.sections) == [view] and page.wrong == []


def test_a_device_finds_its_slices_by_the_formula_of_the_page() -> None:
    """The script's and the page's formula, in Python: the slice of each listed device."""
    data = page_of(REPORTED).shards
    assert data is not None
    tensor = next(t for t in data.tensors if t.names[0] == "layers.*.feed_forward.w1.weight")
    tp, fsdp = data.axes["tp"], data.axes["fsdp"]
    rows = tensor.shape[0] // tp.size // fsdp.size
    for device, shown in enumerate(tensor.slices):
        first = (device // tp.stride % tp.size * fsdp.size + device // fsdp.stride % fsdp.size) * rows
        assert shown == f"[{first}:{first + rows}, 0:{tensor.shape[1]}]"


def test_the_figures_of_accuracy_are_those_of_the_page_that_measured_them() -> None:
    data = json.loads((ROOT / "planc" / "calibration" / "data" / "accuracy.json").read_text())
    measured = (ROOT / "docs" / "measured" / "accuracy.md").read_text()
    for e in data["held_out"]:
        row = f"| {e['group']} | {e['runs']} | {e['median']:.1%} | {e['p90']:.1%} | {e['bias']:+.1%} |"
        assert re.sub(r"(\d)%", r"\1 %", row) in measured, "make docs"
    assert (
        f"peak memory: {data['memory']['runs']} runs, median error {100 * data['memory']['median']:.1f} %" in measured
    )


def test_every_chip_with_published_runs_is_known() -> None:
    from planc.report.views.accuracy import CHIPS

    groups = {e["group"] for e in json.loads((ROOT / "planc/calibration/data/accuracy.json").read_text())["held_out"]}
    assert all(f"{name}, dense" in groups or f"{name}, experts" in groups for name in CHIPS.values())


# What a plan may hold.

EVIL = "<script>alert(1)</script>"
HOSTILE = f"""plan tiny  # {EVIL} --> ]]> </style> \u202e right to left
model     "weird.json"
batch     8 x 128 tokens microbatch 4   # "><img src=x onerror=alert(2)> ' onmouseover='alert(3)
cluster   4 x cpu_local
mesh      fsdp 2 > tp 2   # {{{{ 7 * 7 }}}} {{% raw %}} &lt;b&gt; javascript:alert(4)
use       fsdp over fsdp
use       tp   over tp
optimizer adamw
compute   fp32 reduce fp32
"""
CONFIG = {
    "model_type": "llama", "architectures": [EVIL], "hidden_size": 64, "intermediate_size": 160,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 256, "rms_norm_eps": 1e-5,
    "_name_or_path": EVIL, EVIL: 1, "tie_word_embeddings": False,
}  # fmt: skip


def hostile_plan(folder: Path) -> Path:
    """A plan whose comments, file name and model configuration are markup."""
    folder.joinpath("weird.json").write_text(json.dumps(CONFIG))
    path = folder / "a<img src=x onerror=alert(5)>&quot;.plan"
    path.write_text(HOSTILE.replace('model     "weird.json"', 'model     from "weird.json"'))
    return path


def harmless(text: str) -> None:
    """Nothing of a hostile plan has become an element or an attribute that runs."""
    page = read(text)
    assert page.wrong == []
    scripts = page.of("script")
    assert [e.attributes.get("type", "") for e in scripts].count("") == 1
    assert not [e for e in page.elements if e.tag in ("img", "iframe", "object", "base", "link", "b")]
    assert not [(e.tag, k) for e in page.elements for k in e.attributes if k.startswith("on")]
    assert not set(text) & {"\u202e", "\x1b", "\x00"}
    policy = next(e for e in page.of("meta") if e.attributes.get("http-equiv"))
    assert (
        "script-src 'sha256-" in policy.attributes["content"] and "default-src 'none'" in policy.attributes["content"]
    )


def test_a_hostile_plan_stays_text(tmp_path: Path) -> None:
    examined = examine(hostile_plan(tmp_path))
    assert examined.costed is not None, examined.report.diagnostics
    page = plan_page(examined, f"planc report '{EVIL}'")
    harmless(html(page))
    assert "alert(1)" in read(html(page)).text
    sheet = picture_file(page)
    assert sheet is not None and not [e for e in ElementTree.fromstring(sheet).iter() if e.tag.endswith("script")]


def test_a_hostile_plan_with_errors_stays_text(tmp_path: Path) -> None:
    path = tmp_path / "wrong.plan"
    path.write_text(f"plan wrong\nmodle {EVIL}\nbatch '\"><img src=x onerror=alert(1)>\n# \x1b[31m\u202e</pre>\n")
    page = plan_page(examine(path), "planc report")
    assert page.verdict.outcome == "wrong" and page.memory is None
    harmless(html(page))


# The command.


def test_the_ending_picks_the_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = str(PLANS["tiny"])
    for name, start in (("a.html", "<!doctype html>"), ("a.svg", "<svg"), ("a.json", "{")):
        assert main(["report", plan, "-o", str(tmp_path / name)]) == 0
        assert (tmp_path / name).read_text().startswith(start)
    assert "tiny fits its 4 devices" in capsys.readouterr().out
    assert main(["report", plan, "-o", str(tmp_path / "a.pdf")]) == 2
    assert main(["report", plan, "--view", "memroy", "-o", str(tmp_path / "b.svg")]) == 2
    assert "did you mean `memory`?" in capsys.readouterr().err
    assert main(["report", plan, "--view", "findings", "-o", str(tmp_path / "b.svg")]) == 2
    assert main(["report", plan]) == 2
    assert not (tmp_path / "b.svg").exists() and not (tmp_path / "a.pdf").exists()


def test_a_plan_that_breaks_an_expectation_has_its_page(tmp_path: Path) -> None:
    path = tmp_path / "slow.plan"
    path.write_text(PLANS["tiny"].read_text() + "expect    step_time <= 1 us\n")
    assert main(["report", str(path), "-o", str(tmp_path / "a.html")]) == 1
    assert "E0801" in (tmp_path / "a.html").read_text()
    assert main(["report", str(tmp_path / "absent.plan"), "-o", str(tmp_path / "b.html")]) == 2
    assert not (tmp_path / "b.html").exists()


def test_a_check_loads_no_templates() -> None:
    code = (
        "import sys; from planc.cli import main; main(['check', 'plans/tiny.plan']);"
        "sys.exit(any(m.startswith(('jinja2', 'planc.report', 'planc.picture.render')) for m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["llama3_70b_h100", "mixtral_8x22b_hsdp", "tiny"])
def test_memory_over_the_step_is_the_trace_s(name: str) -> None:
    """One answer to what is held when: the curve has the counters of the fullest rank, change by change."""
    examined = examine(PLANS[name])
    assert examined.costed is not None
    page = plan_page(examined, "")
    assert page.over_step is not None
    rank = page.over_step.stage
    counters = [e for e in trace(examined.costed)["traceEvents"] if e["ph"] == "C" and e["tid"] == rank]
    last = {round(e["ts"] / 1e6, 4): e["args"] for e in counters}
    curve = zip(page.over_step.times_s, page.over_step.activations_gib, page.over_step.working_gib, strict=True)
    drawn = {round(at_s, 4): (gib, working) for at_s, gib, working in curve}
    common = sorted(set(last) & set(drawn))
    assert len(common) > 3 and page.over_step.peak_s <= max(drawn)
    for at_s in common:
        held = last[at_s]["activations"], last[at_s]["working"]
        assert drawn[at_s] == pytest.approx(held, abs=2e-4), at_s


@pytest.mark.skipif(which("node") is None, reason="needs node, which reads the scripts without running them")
@pytest.mark.parametrize("name", ["planc/report/templates/page.js", "docs/playground/playground.js"])
def test_scripts_are_read_without_an_error(tmp_path: Path, name: str) -> None:
    """A name that is declared twice stops a page's whole script; the browser's own tests run seldom."""
    copy = tmp_path / "script.mjs"
    copy.write_text((ROOT / name).read_text())
    done = subprocess.run(["node", "--check", str(copy)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


CLOSE = """plan close
model     llama3_8b
batch     256 x 8192 tokens microbatch 1
cluster   8 x h100_node
mesh      fsdp 64
use       fsdp over fsdp
compute   fp32
recompute blocks
"""
"""Ops of this plan lie close to one another and to the slope of the memory."""


@pytest.mark.parametrize("width", [NARROW, WIDE])
def test_names_of_a_roofline_do_not_lie_on_one_another(tmp_path: Path, width: float) -> None:
    path = tmp_path / "close.plan"
    path.write_text(CLOSE)
    page = plan_page(examine(path), "")
    assert page.roofline is not None
    drawn = roofline.picture(page.roofline, width)
    assert drawn is not None
    names = [m for m in drawn.marks if isinstance(m, Text) and "halo" in m.css]
    boxes = [(m.x - text_px(m.text) * (m.anchor == "end"), m.y, text_px(m.text)) for m in names]
    assert len(boxes) >= 3
    for (x, y, wide), (u, v, other) in combinations(boxes, 2):
        assert abs(y - v) >= 12 or x + wide <= u or u + other <= x, [m.text for m in names]
