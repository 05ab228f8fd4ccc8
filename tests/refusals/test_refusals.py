"""The table of combinations that users write: what its page calls lowered is lowered."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planc.ir.target import Target
from tests.refusals.run import BEFORE, LOWERED, PAGE, answer, read

GROUPS, ROWS = read()


def _shown() -> dict[str, dict[Target, str]]:
    """Answers that the page shows for each row, by target."""
    lines = [line.strip("| ").split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    return {cells[0]: {"cuda": cells[3], "xla": cells[5]} for cells in lines if len(cells) == 6 and "`" in cells[1]}


def test_the_table_covers_every_group() -> None:
    """Five combinations or more in each of the 13 groups, each of its own name and text."""
    counts = [sum(row.group == number for row in ROWS) for number in GROUPS]
    assert len(GROUPS) == 13 and min(counts) >= 5
    assert len({row.text for row in ROWS}) == len({row.name for row in ROWS}) == len(ROWS) >= 66


def test_the_page_and_the_first_answers_have_every_row() -> None:
    names = [row.name for row in ROWS]
    assert list(_shown()) == names == list(json.loads(BEFORE.read_text())["answers"])


@pytest.mark.parametrize("target", ["cuda", "xla"])
def test_what_the_page_calls_lowered_is_lowered(target: Target, tmp_path: Path) -> None:
    lowered = [row for row in ROWS if _shown()[row.name][target] == LOWERED]
    assert len(lowered) >= 15
    refused = {row.name: found for row in lowered if (found := answer(row, target, tmp_path)) != LOWERED}
    assert not refused
