"""The published layouts under `plans/field`: short, sourced, and in line with what was published."""

from pathlib import Path

import pytest

from planc.driver import check
from planc.syntax import parse_text
from tests.plans import FIELD


@pytest.mark.parametrize("path", FIELD, ids=lambda p: p.stem)
def test_a_plan_is_short_and_right(path: Path) -> None:
    """At most 20 sentences, no error, so every `expect` holds; the second line says where it is from."""
    text = path.read_text()
    assert len(parse_text(text, path.name).sentences) <= 20
    assert text.splitlines()[1].startswith("# ")
    report = check(path)
    assert report.ok, [d.message for d in report.diagnostics if d.severity == "error"]
