"""The documentation's site: what `make docs-site` stages, and how it follows links. The site itself is built in CI."""

import re
import runpy
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def build() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "docs" / "site" / "build.py"))


def test_links_that_lead_nowhere_and_loads_from_elsewhere_are_found(build: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "index.html").write_text(
        '<h1 id="top">x</h1><a href="sub/">ok</a><a href="#top">ok</a><a href="https://example.org">not followed</a>'
        '<a href="sub/index.html#there">ok</a><a href="sub/index.html#gone">1</a><a href="gone.html">2</a>'
        '<script src="https://example.org/x.js"></script><link href="gone.css">'
    )
    (tmp_path / "sub" / "index.html").write_text('<p id="there"><a href="../index.html#top">ok</a><img src="data:,">')
    assert build["broken"](tmp_path) == [
        "index.html loads https://example.org/x.js",
        "index.html: sub/index.html#gone: no such place",
        "index.html: gone.html is not there",
        "index.html: gone.css is not there",
    ]


def test_every_page_is_staged_and_no_link_leaves_the_site(build: dict[str, Any], tmp_path: Path) -> None:
    """Files of the checkout that pages name become pages: grammar, layouts, plans of threads."""
    build["stage"](tmp_path)
    assert {p.relative_to(ROOT / "docs") for p in (ROOT / "docs").rglob("*.md")} <= {
        p.relative_to(tmp_path) for p in tmp_path.rglob("*.md")
    }
    for page in tmp_path.rglob("*.md"):
        for link in re.findall(r"\]\(((?:\.\./)+[^)#\s]+)", page.read_text()):
            target = (page.parent / link).resolve()
            assert target.is_relative_to(tmp_path) and target.exists(), (page, link)
    assert (tmp_path / "files" / "plans" / "layouts.md").read_text().count("## ") > 10


def test_the_gallery_is_twelve_layouts_of_the_tree(build: dict[str, Any]) -> None:
    assert len(set(build["GALLERY"])) == 12
    assert all((ROOT / "plans" / "field" / f"{name}.plan").is_file() for name in build["GALLERY"])


def test_the_site_s_pins_hold_what_planc_needs() -> None:
    """The list is whole: Sphinx, MyST, furo, and planc's own dependencies, each at one version that planc takes."""
    lines = (ROOT / ".ci/pins/docs.txt").read_text().splitlines()
    pins = {p.name.lower().replace("_", "-"): p.specifier for p in map(Requirement, filter(_is_pin, lines))}
    assert {"sphinx", "myst-parser", "furo"} <= pins.keys()
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    for wanted in map(Requirement, needed):
        (pin,) = pins[wanted.name]
        assert pin.operator == "==" and Version(pin.version) in wanted.specifier


def _is_pin(line: str) -> bool:
    return bool(line) and not line.startswith("#")
