"""Published times of a sync of weights, and the pairs of plans under `plans/serve`."""

from pathlib import Path

import pytest

from planc.driver.serving import check_serve
from tests.cost.syncs import PAGE, page, ratio, syncs
from tests.plans import ROOT

SERVED = [p for p in sorted((ROOT / "plans" / "serve").glob("*.plan")) if p.read_text().startswith("serve")]


def test_a_prediction_is_below_what_was_published() -> None:
    """The prediction is the time of links; the programs that were published took at most six times as long."""
    found = [ratio(row) for row in syncs() if "why" not in row]
    assert len(found) >= 5
    assert all(1 / 6 < one <= 1 for one in found), found


def test_the_page_is_what_is_predicted() -> None:
    assert PAGE.read_text() == page()


@pytest.mark.parametrize("file", SERVED, ids=lambda file: file.stem)
def test_the_examples_fit_and_hold_what_they_expect(file: Path) -> None:
    report = check_serve(file)
    assert not report.diagnostics
    assert report.sync is not None
    most = 1.8 if report.sync.deepest > 200 else 1.5  # the last bucket passes 256 nodes in a row
    assert report.sync.bound_s <= report.sync.seconds <= most * report.sync.bound_s
