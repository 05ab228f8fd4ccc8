"""planc's functions stay callable whatever is imported: two of them share their name with a package."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.plans import ROOT

PLAN = "plans/tiny.plan"
AFTER = ["", "planc.check(PLAN)\n", "import planc.cost, planc.search\n", "from planc.cost import device_group\n"]


@pytest.mark.parametrize("before", AFTER, ids=["first", "check", "packages", "package"])
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
import planc.cost
assert callable(planc.cost.device_group) and callable(planc.cost)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
