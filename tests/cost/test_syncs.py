"""Published times of a sync of weights, and the pairs of plans under `plans/serve`."""

from pathlib import Path
from statistics import median

import pytest

from planc.costing.weight_sync import APART_BYTES_PER_S
from planc.driver.serving import check_serve
from tests.cost.syncs import PAGE, near, one_program, page, predicted, ratios
from tests.plans import ROOT

SERVED = [p for p in sorted((ROOT / "plans" / "serve").glob("*.plan")) if p.read_text().startswith("serve")]


def test_links_are_below_what_was_published_and_one_rate_explains_most_of_the_rest() -> None:
    rows = predicted().values()
    assert len(rows) >= 16 and all(row.links_s < row.published_s for row in rows)
    found = ratios(predicted())
    assert all(0.4 < one < 1.4 for one in found) and near(found) >= 6, found
    assert near(ratios(one_program())) >= 9, "of 12"
    rates = sorted(row.bytes_per_s for row in rows)
    assert pytest.approx((rates[0], median(rates), rates[-1]), rel=0.01) == APART_BYTES_PER_S


def test_the_page_is_what_is_predicted() -> None:
    assert PAGE.read_text() == page()


@pytest.mark.parametrize("file", SERVED, ids=lambda file: file.stem)
def test_the_examples_fit_and_hold_what_they_expect(file: Path) -> None:
    report = check_serve(file)
    assert not report.diagnostics
    assert report.sync is not None
    most = 1.8 if report.sync.deepest > 200 else 1.5  # the last bucket passes 256 nodes in a row
    assert report.sync.bound_s <= report.sync.seconds <= most * report.sync.bound_s
