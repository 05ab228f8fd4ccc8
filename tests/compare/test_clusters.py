"""One plan on several clusters: the Pareto front, the cheapest in time, the fastest for the money."""

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

import planc
from planc.cli import main
from planc.cli.schemas import schema
from planc.compare.clusters import Choice, Clusters, compare
from planc.compare.plan_edit import NotWrittenError
from tests.plans import written

TEXT = """plan x
model     llama3_8b
batch     256 x 8192 tokens microbatch 1
cluster   8 x h100_node
mesh      fsdp ? > tp ?
use       fsdp over fsdp
use       tp over tp
compute   bf16 reduce fp32
recompute blocks
train     for 1 T tokens
price     2 USD per device hour
expect    days <= 40
expect    price <= 100 kUSD
"""
CLUSTERS = ("4 x h100_node", "8 x h100_node", "8 x h200_node; price 400 USD per node hour", "3 x no_such_node")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Clusters:
    return compare(written(tmp_path_factory.mktemp("plans"), TEXT), [Choice.of(c) for c in CLUSTERS])


def test_a_row_is_what_the_search_on_that_cluster_finds(found: Clusters, tmp_path: Path) -> None:
    best = planc.search(written(tmp_path, TEXT), top=3)
    row = found.rows[1]
    assert row.best is not None and row.run == best[0].run
    assert (row.best.text, row.best.time_s, row.devices) == (best[0].text, best[0].time_s, 64)
    again = planc.check(written(tmp_path, row.best.text))
    assert again.run is not None and again.run.price == pytest.approx(row.price, rel=1e-12)


def test_on_one_cluster_the_fastest_is_the_cheapest(tmp_path: Path) -> None:
    runs = [c.run for c in planc.search(written(tmp_path, TEXT), top=5)]
    prices, days = [r.price for r in runs if r], [r.days for r in runs if r]
    assert len(prices) >= 3 and prices == sorted(prices) and days == sorted(days)


def test_the_answers_follow_from_the_rows(found: Clusters) -> None:
    """4 nodes take too long, h200 is the fastest but for no reasonable money."""
    four, eight, dear, unknown = found.rows
    assert four.days > 40 > eight.days > dear.days and four.price < eight.price < 100_000 < dear.price
    assert [r.cluster for r in found.pareto] == ["8 x h200_node", "8 x h100_node", "4 x h100_node"]
    assert found.cheapest is eight and found.fastest is eight
    assert unknown.best is None and unknown.why.startswith("E0108") and unknown not in found.pareto


def test_a_dominated_cluster_is_not_on_the_front(tmp_path: Path) -> None:
    choices = [Choice.of(c) for c in ("8 x h100_node", "8 x h100_node price 2.01 USD per device hour")]
    rows = compare(written(tmp_path, TEXT), choices)
    assert rows.pareto == (rows.rows[0],)


def test_without_a_limit_that_can_be_met_there_is_no_answer(tmp_path: Path) -> None:
    tight = TEXT.replace("days <= 40", "days <= 1").replace("price <= 100 kUSD", "price <= 1 kUSD")
    rows = compare(written(tmp_path, tight), [Choice.of("8 x h100_node")])
    assert rows.pareto and rows.cheapest is None and rows.fastest is None


def test_the_command_s_json_keeps_its_schema(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = written(tmp_path, TEXT.replace("mesh      fsdp ? > tp ?", "mesh      fsdp ? > tp 8"))
    clusters = [a for c in CLUSTERS[1:] for a in ("--cluster", c)]
    assert main(["search", str(path), *clusters, "--format", "json", "-o", str(tmp_path / "out")]) == 0
    answer = json.loads(capsys.readouterr().out)
    Draft202012Validator(schema("planc.clusters/1")).validate(answer)
    assert (answer["pareto"], answer["cheapest"]) == ([1, 0], None)  # with tp 8 each takes too long
    assert answer["limits"] == {"days": 40.0, "price": 100_000.0}
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["example_1.plan", "example_2.plan"]


def test_prices_in_two_currencies_and_runs_without_length_are_refused(tmp_path: Path) -> None:
    plain = TEXT.replace("expect    price <= 100 kUSD\n", "")
    two = [Choice.of("4 x h100_node"), Choice.of("8 x h100_node price 2 EUR per device hour")]
    with pytest.raises(NotWrittenError, match="EUR and USD"):
        compare(written(tmp_path, plain.replace("tp ?", "tp 8")), two)
    endless = plain.replace("train     for 1 T tokens\n", "").replace("expect    days <= 40\n", "")
    with pytest.raises(NotWrittenError, match="train"):
        compare(written(tmp_path, endless), two)
    assert main(["search", str(tmp_path / "example.plan"), "--cluster", "1 x h100_node"]) == 2
