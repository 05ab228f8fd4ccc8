"""Reports in a headless browser: no error, no request, every view drawn, sums as in the JSON; pictures to look at.

Run by `make pages`; the pictures lie in build/pages.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import isclose
from pathlib import Path

import pytest

from planc.driver import examine
from planc.report.plan_page import PlanPage, plan_page
from planc.report.render import PLAN_VIEWS, as_json, html
from tests.graph.test_field_machines import MESHES, written_on
from tests.plans import ROOT
from tests.report.browser import PHONE, Browser, Page, browser, executable
from tests.report.test_plan_page import PLANS, hostile_plan

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(executable() is None, reason="no chromium on this machine: `apt-get install chromium`"),
]
SHOWN = ("tiny", "llama3_70b_h100", "qwen3_235b_gb200", "deepseek_v3_h800", "llama3_405b_8k", "llama3_70b_v5p", *MESHES)
PICTURES = ROOT / "build" / "pages"


@pytest.fixture(scope="module")
def started() -> Iterator[Browser]:
    with browser() as made:
        yield made


def opened(started: Browser, page: PlanPage, folder: Path, *, dark: bool = False, width: int = 1000) -> Page:
    path = folder / "report.html"
    path.write_text(html(page))
    tab = started.page()
    tab.open(path, dark=dark, width=width)
    return tab


def silent(tab: Page) -> None:
    """Nothing was logged, refused or asked for."""
    assert tab.errors == [] and tab.dialogs == []
    assert [r for r in tab.requests if not r.startswith("file:")] == [] and len(tab.requests) == 1


VISIBLE = """[...document.querySelectorAll('main section')].map(s => [s.id, s.getBoundingClientRect().height,
  [...s.querySelectorAll('svg, canvas')].filter(e => e.getBoundingClientRect().width > 100).length])"""
CELLS = """[...document.querySelectorAll('[data-table="memory"] [data-key="total"]')].map(e => +e.dataset.value)"""
WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.mark.parametrize("name", SHOWN)
def test_a_page_is_drawn_and_asks_for_nothing(started: Browser, tmp_path: Path, name: str) -> None:
    path = written_on(tmp_path, name) if name in MESHES else PLANS[name]
    page = plan_page(examine(path), f"planc report {name}.plan -o report.html")
    PICTURES.mkdir(parents=True, exist_ok=True)
    for form, dark, width in (("light", False, 1000), ("dark", True, 1000), ("phone", False, PHONE)):
        tab = opened(started, page, tmp_path, dark=dark, width=width)
        pictures = {v.name for v in PLAN_VIEWS if v.picture}
        for view, height, drawn in tab.evaluate(VISIBLE):
            assert height > 40 and (drawn >= 1 if view in pictures else True), (name, form, view)
        assert tab.evaluate(WIDE) <= 0, "the page is wider than the window"
        assert tab.evaluate(CELLS) == [s["total_gib"] for s in json.loads(as_json(page))["memory"]["stages"]]
        tab.screenshot(PICTURES / f"{name}_{form}.png")
        silent(tab)
    tab = opened(started, page, tmp_path)
    tab.pdf(PICTURES / f"{name}_print.pdf")
    silent(tab)


def test_the_timeline_zooms_and_tells_what_a_stretch_is(started: Browser, tmp_path: Path) -> None:
    page = plan_page(examine(PLANS["llama3_70b_h100"]), "planc report")
    tab = opened(started, page, tmp_path)
    key = "k => document.querySelector('#zoom canvas').dispatchEvent(new KeyboardEvent('keydown', {key: k}))"
    said = "document.getElementById('zoom-says').textContent"
    tab.evaluate(f"['+', '+', 'n'].forEach({key})")
    assert "rank 0: forward of microbatch 0, stage 0" in tab.evaluate(said)
    tab.evaluate(f"['ArrowDown', 'ArrowDown', 'n', 'n', 'n'].forEach({key})")
    text = tab.evaluate(said)
    assert text.startswith("rank 2") and ("Line 3: model llama3_70b" in text or "Line 8: shard sequence" in text)
    before = "document.querySelector('#zoom canvas').toDataURL()"
    drawn = tab.evaluate(before)
    tab.evaluate(f"['+', 'ArrowRight'].forEach({key})")
    assert tab.evaluate(before) != drawn
    silent(tab)


def test_the_script_finds_the_slices_that_the_page_lists(started: Browser, tmp_path: Path) -> None:
    for name in ("llama3_70b_h100", "deepseek_v3_h800"):
        page = plan_page(examine(PLANS[name]), "planc report")
        tab = opened(started, page, tmp_path)
        assert page.shards is not None
        for device in (0, 1, 9, 15):
            tab.evaluate(f"var field = document.getElementById('device'); field.value = {device}")
            tab.evaluate("field.dispatchEvent(new Event('input'))")
            shown = tab.evaluate("[...document.querySelectorAll('[data-tensor]')].map(e => e.textContent)")
            assert shown == [t.slices[device] for t in page.shards.tensors]
        silent(tab)


def test_a_hostile_plan_runs_nothing(started: Browser, tmp_path: Path) -> None:
    examined = examine(hostile_plan(tmp_path))
    tab = opened(started, plan_page(examined, "planc report '<script>alert(1)</script>'"), tmp_path)
    assert tab.evaluate("document.querySelectorAll('img, iframe, object').length") == 0
    assert "<script>alert(1)</script>" in tab.evaluate("document.body.innerText")
    silent(tab)


def test_a_script_that_is_put_into_a_page_is_refused(started: Browser, tmp_path: Path) -> None:
    """The page's policy allows its own script alone: the test above can fail, and the browser would be heard."""
    page = plan_page(examine(PLANS["tiny"]), "planc report")
    path = tmp_path / "planted.html"
    path.write_text(html(page).replace("</main>", "</main><script>alert(1)</script><img src='https://example.org/x'>"))
    tab = started.page()
    tab.open(path)
    assert tab.dialogs == [] and len(tab.errors) >= 2 and "Content Security Policy" in tab.errors[0]


def test_numbers_of_the_page_sum_to_the_step(started: Browser, tmp_path: Path) -> None:
    page = plan_page(examine(PLANS["deepseek_v3_h800"]), "planc report")
    tab = opened(started, page, tmp_path)
    ask = """[...document.querySelectorAll('[data-table="sentences"] [data-key="seconds"]')]
      .reduce((n, e) => n + +e.dataset.value, 0)"""
    assert page.timeline is not None
    assert isclose(tab.evaluate(ask), page.timeline.step_s, rel_tol=1e-9)
