"""Values in notebooks: text, HTML without script whose styles stay inside, SVG and JSON, each made once."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

import planc
from planc.compare.diff import diff
from planc.driver import examine
from planc.picture.notebook import SCOPE, InNotebook
from tests.report.pages import read
from tests.report.test_plan_page import EVIL, PLANS, hostile_plan


def values() -> dict[str, InNotebook]:
    a, b = examine(PLANS["tiny"]), examine(PLANS["tiny_moe"])
    assert a.costed is not None and b.costed is not None
    return {
        "report": a.report,
        "program": planc.lower(PLANS["tiny"], "cuda"),
        "diff": diff(a.costed, b.costed, names=("a.plan", "b.plan")),
        "search": planc.search(PLANS["tiny"]),
    }


@pytest.mark.parametrize("name", ["report", "program", "diff", "search"])
def test_a_value_shows_itself(name: str) -> None:
    value = values()[name]
    shown: dict[str, Any] = value._repr_mimebundle_()
    assert shown["application/json"] == value.to_json() and json.dumps(shown["application/json"])
    assert 0 < len(shown["text/plain"].splitlines()[0]) < 400
    page = read(shown["text/html"])
    assert page.wrong == [] and not page.of("script") and len(page.text.strip()) > 20
    assert shown["text/html"] == value._repr_html_() and shown.get("image/svg+xml") == value._repr_svg_()
    assert ("image/svg+xml" in shown) == (name in ("report", "search"))
    if svg := value._repr_svg_():
        ElementTree.fromstring(svg)
    assert value._repr_mimebundle_()["text/html"] is shown["text/html"], "made once"
    assert set(value._repr_mimebundle_(include=["text/plain"])) == {"text/plain"}
    assert "text/html" not in value._repr_mimebundle_(exclude=["text/html"])


def test_styles_of_a_fragment_stay_inside_it() -> None:
    html = planc.check(PLANS["tiny"])._repr_html_()
    (css,) = re.findall(r"<style>(.*?)</style>", html, re.DOTALL)
    selectors = [s.strip() for found in re.findall(r"([^{}]+)\{[^{}]*\}", css) for s in found.split("{")[-1].split(",")]
    assert selectors and all(s.startswith(f".{SCOPE}") for s in selectors)


def test_a_report_with_errors_shows_them(tmp_path: Path) -> None:
    path = tmp_path / "wrong.plan"
    path.write_text("plan wrong\nmodle llama_tiny\n")
    shown = planc.check(path)._repr_mimebundle_()
    assert "not costed" in shown["text/plain"] and "E0101" in shown["text/html"] and "image/svg+xml" not in shown


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    a, b = examine(hostile_plan(tmp_path)), examine(PLANS["tiny"])
    assert a.costed is not None and b.costed is not None
    for value in (a.report, diff(a.costed, b.costed, names=(EVIL, "\u202e" + EVIL))):
        html = value._repr_html_()
        page = read(html)
        assert page.wrong == [] and not page.of("script") and not page.of("img") and "\u202e" not in html
