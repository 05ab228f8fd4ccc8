"""docs/measured/accuracy.md is what `planc bench accuracy` says today."""

import sys
from pathlib import Path

import pytest

from tests.lab.bench.accuracy import markdown, numbers
from tests.lab.published.parameters import PARAMETERS
from tests.lab.published.plans import unusable
from tests.lab.published.rows import training_rows
from tests.plans import ROOT

HEAD = ("number", "value", "prior", "bounds", "largest change, by leaving out", "why")
PAGE = (ROOT / "docs" / "measured" / "accuracy.md").read_text()


def test_the_page_lists_every_number_with_its_unit_and_bounds() -> None:
    lines = PAGE.splitlines()
    assert [line for line in markdown(HEAD, numbers()) if line not in lines] == []
    assert len(numbers()) == len(PARAMETERS)


def test_the_page_counts_every_run() -> None:
    assert f"| all | {sum(not unusable(row) for row in training_rows())} |" in PAGE


@pytest.mark.slow
def test_the_page_is_fresh() -> None:
    sys.path.insert(0, str(Path(ROOT, "docs")))
    import generate

    for path, text in generate.accuracy_files().items():
        assert path.read_text() == text, "make docs"
