"""The JSON of check has exactly the keys of its published schema."""

from pathlib import Path
from typing import Any

import pytest

from planc.cli import schemas
from planc.driver import check
from tests.cli.schemas import valid
from tests.plans import BUNDLED, FIELD


def assert_exact(report: dict[str, Any]) -> None:
    """The report agrees with its schema, and has no key beside those that the schema lists."""
    assert valid(report) == "planc.report/1"
    assert set(report) == set(schemas.schema("planc.report/1")["required"])


@pytest.mark.parametrize("path", [*BUNDLED, *FIELD], ids=lambda p: p.stem)
def test_the_report_of_a_good_plan(path: Path) -> None:
    report = check(path).to_json()
    assert_exact(report)
    assert all(
        report[key] is not None for key in ("model", "memory", "step", "collectives", "cluster", "axes", "goodput")
    )


@pytest.mark.parametrize(
    "text", ["", "plan x\n", "plan x\nmodle y\n", "plan x\nmodel llama_tiny\nmesh a 3\ncompute fp32\n"]
)
def test_the_report_of_a_bad_plan(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.plan"
    path.write_text(text)
    report = check(path).to_json()
    assert_exact(report)
    assert report["diagnostics"] and report["step"] is None
