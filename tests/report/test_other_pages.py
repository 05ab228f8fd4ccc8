"""The pages of two plans and of a search: whole, escaped, with the numbers of their commands' answers."""

from __future__ import annotations

import itertools
import json
import re
from math import isclose
from pathlib import Path

import pytest

from planc.cli import main
from planc.compare.diff import diff
from planc.driver import examine, search
from planc.picture.charts import Bar, BarPart, DivergingRow, diverging_bars, stacked_bars
from planc.picture.marks import Rect, StraightLine, Text, text_px
from planc.report.diff_page import DIFF_VIEWS, DiffPage, diff_page
from planc.report.render import as_json, html, picture_file
from planc.report.search_page import SEARCH_VIEWS, SearchPage, pareto_picture, search_page
from tests.report.pages import read
from tests.report.test_plan_page import EVIL, MOST_BYTES, PLANS, harmless, hostile_plan

FREE = """plan free
model llama3_8b(layers = 8)
batch 32 x 4096 tokens microbatch 1
cluster 1 x h100_node
mesh fsdp ? > tp ?
use fsdp over fsdp
use tp over tp
compute fp32
"""


def diff_of(a: Path, b: Path, command: str = "planc diff a b") -> DiffPage:
    one, other = examine(a), examine(b)
    assert one.costed is not None and other.costed is not None
    return diff_page(one, other, diff(one.costed, other.costed, names=(str(a), str(b))), command)


def test_a_page_of_two_plans_has_both_sums() -> None:
    a, b = PLANS["llama3_70b_h100"], PLANS["llama3_70b_v5p"]
    page = diff_of(a, b)
    text = html(page)
    shown = read(text)
    assert shown.wrong == [] and list(shown.sections) == [v.name for v in DIFF_VIEWS]
    assert min(shown.sections.values()) > 10 and len(text) < MOST_BYTES
    for side, path in zip(page.step.sides, (a, b), strict=True):
        report = examine(path).report
        assert report.step and report.memory
        assert isclose(sum(shown.values["step", side.letter]), report.step.time_s, rel_tol=1e-9)
        assert isclose(sum(shown.values["memory", side.letter]), report.memory.worst.per_device_gib.total, rel_tol=1e-9)
    assert not page.losses.comparable and "847" in page.checkpoint.replace("846.7", "847")
    assert DiffPage.model_validate_json(as_json(page)) == page
    assert (picture_file(page) or "").count("<svg") == 3


def test_a_plan_beside_itself_says_so() -> None:
    page = diff_of(PLANS["tiny"], PLANS["tiny"])
    assert page.verdict.headline == "the same" and all(row.same for row in page.lines)
    assert "the same shards" in read(html(page)).text


def test_a_page_of_a_hostile_plan_and_another_stays_text(tmp_path: Path) -> None:
    page = diff_of(hostile_plan(tmp_path), PLANS["tiny"], f"planc diff '{EVIL}'")
    harmless(html(page))
    assert "alert(1)" in read(html(page)).text


def test_a_page_of_a_search_says_why_each_mesh_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "free.plan"
    path.write_text(FREE + f"# {EVIL}\n")
    found = search(path, top=2)
    page = search_page(path, {}, None, found, "planc search free.plan")
    text = html(page)
    shown = read(text)
    harmless(text)
    assert list(shown.sections) == [v.name for v in SEARCH_VIEWS] and min(shown.sections.values()) > 10
    assert shown.values["best", "time"] == [c.time_s for c in found]
    assert page.pareto is not None and page.rejected.of == 4
    best = {c.point.sizes for c in (*found.best, *found.pareto)}
    assert len(page.rejected.meshes) == 4 - len(best) and all(m.why for m in page.rejected.meshes)
    for mesh in page.rejected.meshes:
        if mesh.time_s is not None and mesh.memory_gib is not None and mesh.memory_gib <= found.room_gib:
            assert mesh.time_s >= found[0].time_s
    assert SearchPage.model_validate_json(as_json(page)) == page


def test_a_search_without_a_layout_that_fits_has_a_page(tmp_path: Path) -> None:
    path = tmp_path / "large.plan"
    path.write_text(FREE.replace("llama3_8b(layers = 8)", "llama3_70b"))
    assert main(["search", str(path), "-o", str(tmp_path / "page.html")]) == 1
    shown = read((tmp_path / "page.html").read_text())
    assert "No layout fits" in shown.text and "large.plan" in shown.text and "too much" in shown.text
    assert re.search(r"\d nodes are enough: fsdp \d+, tp \d, [\d.]+ gib", shown.text, re.IGNORECASE)
    assert f"planc search {path.name} " in shown.text and str(tmp_path) not in shown.text


def test_labels_begin_inside_the_picture_in_wide_letters_too() -> None:
    parts = [BarPart("compute", "compute")]
    rows = [Bar("A WWWMMM175", [1.0], "1 s"), Bar("B", [2.0], "2 s")]
    made = stacked_bars(rows, parts, title="t", summary="s", unit="s", width=900)
    ends = {m.text: m.x for m in made.marks if isinstance(m, Text) and m.anchor == "end"}
    assert ends["A WWWMMM175"] - 1.2 * text_px("A WWWMMM175") >= 0


def test_one_change_far_above_the_others_is_cut() -> None:
    css = ("worse", "worse")
    rows = [DivergingRow(str(n), (n, n), (f"{n:+} %", ""), css) for n in (247.0, 12.0, -8.0)]
    made = diverging_bars(rows, ("time", "memory"), title="t", summary="s", width=900)
    wide = {m.title: m.width for m in made.marks if isinstance(m, Rect) and "%" in m.title}
    assert wide["12.0: +12.0 %"] == pytest.approx(0.5 * wide["247.0: +247.0 %"])
    assert sum(isinstance(m, StraightLine) and m.css == "cut" for m in made.marks) == 4  # two in each column


def test_near_points_of_a_search_share_a_label_right_of_them(tmp_path: Path) -> None:
    path = tmp_path / "free.plan"
    path.write_text(FREE + "recompute ?\n")
    page = search_page(path, {}, None, search(path, top=5), "planc search free.plan")
    assert page.pareto is not None
    marks = pareto_picture(page.pareto, 900).marks
    labels = [m for m in marks if isinstance(m, Text) and m.css == "strong halo"]
    ranks = [int(n) for m in labels for n in (m.text.split(" to ") if " to " in m.text else m.text.split(", "))]
    assert ranks and all(
        abs(a.y - b.y) >= 10 or a.x + text_px(a.text) <= b.x or b.x + text_px(b.text) <= a.x
        for a, b in itertools.combinations(labels, 2)
    )


def test_commands_write_pages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny, page = str(PLANS["tiny"]), tmp_path / "page.json"
    assert main(["diff", tiny, tiny, "-o", str(page)]) == 0
    assert json.loads(page.read_text())["command"].startswith("planc diff ")
    assert main(["search", tiny, "-o", str(tmp_path / "s.svg")]) == 0
    assert (tmp_path / "s.svg").read_text().startswith("<svg")
    assert main(["search", tiny, "-o", str(tmp_path / "plans")]) == 0
    assert (tmp_path / "plans" / "tiny_1.plan").is_file()
    assert main(["diff", tiny, tiny, "-o", str(tmp_path / "a.pdf")]) == 2
    assert main(["search", tiny, "--view", "parto", "-o", str(tmp_path / "a.html")]) == 2
    assert "did you mean `pareto`?" in capsys.readouterr().err
