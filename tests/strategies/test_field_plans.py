"""The published layouts under `plans/field`: short, sourced, and in line with what was published."""

from pathlib import Path

import pytest

from planc.driver import check
from planc.syntax import parse_text
from tests.plans import FIELD

WAITS = "# waits for the calibrated cost model: "


@pytest.mark.parametrize("path", FIELD, ids=lambda p: p.stem)
def test_a_plan_is_short_and_right(path: Path) -> None:
    """At most 20 sentences, no error, so every `expect` holds; the second line says where it is from."""
    text = path.read_text()
    assert len(parse_text(text, path.name).sentences) <= 20
    assert text.splitlines()[1].startswith("# ")
    report = check(path)
    assert report.ok, [d.message for d in report.diagnostics if d.severity == "error"]


def test_what_waits_for_calibration_is_known() -> None:
    """One side of a published figure that the uncalibrated cost misses: each is marked, none forgotten."""
    waiting = {p.stem for p in FIELD if WAITS in p.read_text()}
    assert waiting == {"gpt3_175b_a100", "llama3_405b_8k", "llama3_70b_v6e", "mpt_7b_h100_fsdp"}


@pytest.mark.parametrize("path", [p for p in FIELD if WAITS in p.read_text()], ids=lambda p: p.stem)
def test_what_waits_still_has_to(path: Path, tmp_path: Path) -> None:
    """Once the cost model meets it, the mark must go."""
    line = next(line for line in path.read_text().splitlines() if line.startswith(WAITS))
    (tmp_path / path.name).write_text(path.read_text().replace(line, line.removeprefix(WAITS)))
    assert "E0801" in {d.code for d in check(tmp_path / path.name).diagnostics}
