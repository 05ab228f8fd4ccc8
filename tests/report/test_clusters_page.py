"""The page of a search over several clusters: whole, escaped, with the figures of the answer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from planc.cli import main
from planc.cli.schemas import schema
from planc.compare.clusters import Choice, Clusters, compare
from planc.report.clusters_page import CLUSTERS_VIEWS, ClustersPage, clusters_page
from planc.report.render import as_json, html, picture_file
from tests.compare.test_clusters import CLUSTERS, TEXT
from tests.plans import written
from tests.report.pages import read
from tests.report.test_plan_page import EVIL, MOST_BYTES, harmless

FIXED = TEXT.replace("mesh      fsdp ? > tp ?", "mesh      fsdp ? > tp 8")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Clusters:
    choices = [Choice.of(c) for c in (*CLUSTERS, f"2 x {EVIL}")]
    return compare(written(tmp_path_factory.mktemp("plans"), FIXED), choices)


@pytest.fixture(scope="module")
def page(found: Clusters) -> ClustersPage:
    return clusters_page(found, "example.plan", FIXED, "planc search example.plan")


def test_the_page_has_the_figures_of_the_answer(found: Clusters, page: ClustersPage) -> None:
    text = html(page)
    shown = read(text)
    assert shown.wrong == [] and len(text) < MOST_BYTES
    assert list(shown.sections) == [v.name for v in CLUSTERS_VIEWS] and min(shown.sections.values()) > 10
    held = [row for row in found.rows if row.best]
    assert len(held) == 3
    assert shown.values["clusters", "days"] == [row.days for row in held]
    assert shown.values["clusters", "price"] == [row.price for row in held]
    assert [row.cluster for row in page.clusters.rows if row.on_front] == [
        row.cluster for row in found.rows if row in found.pareto
    ]
    assert page.clusters.rows[3].why.startswith("E0108") and "E0108" in shown.text
    assert "The cheapest that is done in 40 days: none" in page.verdict.sentence
    assert "3 of 5 clusters hold a layout" in page.verdict.sentence
    harmless(text)
    assert ClustersPage.model_validate_json(as_json(page)) == page
    Draft202012Validator(schema("planc.report.clusters/1")).validate(json.loads(as_json(page)))
    assert (picture_file(page) or "").count("<svg") == 3  # the sheet, days against price, steps


def test_limits_and_every_cluster_are_in_the_picture(page: ClustersPage) -> None:
    drawn = picture_file(page, "pareto") or ""
    assert "40 days expected" in drawn and "100.0 kUSD expected" in drawn
    assert all(row.cluster.split(";")[0] in drawn for row in page.clusters.rows if row.days is not None)


def test_without_prices_there_is_no_front(tmp_path: Path) -> None:
    plain = "".join(line for line in FIXED.splitlines(keepends=True) if not line.startswith(("price", "expect")))
    rows = compare(written(tmp_path, plain), [Choice.of("4 x h100_node"), Choice.of("8 x h100_node")])
    page = clusters_page(rows, "example.plan", plain, "")
    assert page.pareto is None and "The cheapest" not in page.verdict.sentence
    assert "pareto" not in read(html(page)).sections


def test_the_command_writes_pages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = written(tmp_path, FIXED), tmp_path / "page.html"
    asked = ["search", str(path), "--cluster", "8 x h100_node", "--cluster", "8 x h200_node"]
    assert main([*asked, "-o", str(out)]) == 0
    said = capsys.readouterr().out
    assert "The fastest" in said
    again = "--cluster '8 x h100_node' --cluster '8 x h200_node'"
    assert again in read(out.read_text()).text
    assert main([*asked, "--view", "rejected", "-o", str(out)]) == 2
    assert "clusters" in capsys.readouterr().err
