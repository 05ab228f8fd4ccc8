"""The pages of two plans and of a search: whole, escaped, with the numbers of their commands' answers."""

from __future__ import annotations

import json
from math import isclose
from pathlib import Path

import pytest

from planc.cli import main
from planc.compare.diff import diff
from planc.driver import examine, search
from planc.report.diff_page import DIFF_VIEWS, DiffPage, diff_page
from planc.report.render import as_json, html, picture_file
from planc.report.search_page import SEARCH_VIEWS, SearchPage, search_page
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
