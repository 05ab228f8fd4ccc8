"""Costing a loaded plan again runs none of the libraries that reading it needs."""

import subprocess
import sys

ASK = """
import sys
from dataclasses import replace
from planc.costing import cost_plan
from planc.driver import load
from planc.sharding.collectives import semantic_collectives
from tests.plans import propagated

plan = load("plans/field/mixtral_8x22b_hsdp.plan")
called = set()

def profile(frame, event, _arg):
    called.add(frame.f_globals.get("__name__", "").split(".")[0])

sys.setprofile(profile)
sharded = propagated(replace(plan))
cost_plan(sharded, semantic_collectives(sharded))
sys.setprofile(None)
print(*sorted(called))
"""


def test_no_parser_no_validator_no_graph_library() -> None:
    done = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, check=True)
    called = set(done.stdout.split())
    assert "planc" in called and not called & {"lark", "pydantic", "pydantic_core", "networkx"}
