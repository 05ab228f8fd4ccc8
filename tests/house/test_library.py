"""planc's functions stay callable whatever is imported: none shares its name with a file or a folder of planc."""

from __future__ import annotations

import subprocess
import sys

import pytest

import planc
from tests.plans import ROOT

PLAN = "plans/tiny.plan"
AFTER = ["", "planc.check(PLAN)\nimport planc.costing, planc.searching\nfrom planc.costing import device_group\n"]


def test_no_function_has_the_name_of_a_room() -> None:
    """An import of `planc.NAME` would put the module in the function's place."""
    rooms = {path.stem for path in (ROOT / "planc").iterdir()}
    assert set(planc._HOMES) & rooms == set() and "costing" in rooms


@pytest.mark.parametrize("before", AFTER, ids=["first", "after all"])
def test_cost_and_search_are_functions(before: str) -> None:
    code = f"""
import planc
PLAN = {PLAN!r}
{before}
report = planc.cost(PLAN)
assert report.step.time_s > 0
found = planc.search(PLAN)
assert [abs(c.time_s - report.step.time_s) < 1e-12 for c in found] == [True]
assert found[0].to_json()["plan"].startswith("plan tiny")
from planc import cost, search
assert cost(PLAN).step == report.step and len(search(PLAN)) == 1
assert {{"cost", "search"}} <= set(planc.__all__)
import planc.costing
assert callable(planc.costing.device_group) and callable(planc.cost)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
