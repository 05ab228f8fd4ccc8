"""Ranks that hold alike sections are derived, timed and exposed once: the cost is that of all ranks' rows."""

from dataclasses import replace
from pathlib import Path

import pytest

from planc.costing import CostedPlan, cost_plan
from planc.driver import load
from planc.ir.plan import Plan
from planc.sharding.collectives import semantic_collectives
from planc.sharding.stage_assignment import rank_classes
from tests.plans import BUNDLED, FIELD, plan_of, propagated

SPLITS = {
    "dualpipe": ("split layers over pp as dualpipe", "recompute blocks"),
    "uneven": ("split layers over pp as 1f1b stages [embed + 6, 9, 9, 8 + head]", "recompute blocks"),
    "every_third": ("split layers over pp as interleaved_1f1b(chunks = 2)", "recompute blocks every 3 layers"),
    "tied": ("split layers over pp as zbv", "recompute blocks"),
}
PLAN = """plan alike
model     {model}
batch     64 x 1024 tokens microbatch 1
cluster   1 x h100_node
mesh      pp 4 > fsdp 2
use       fsdp over fsdp
compute   fp32
{split}
{recompute}
"""


def _split(folder: Path, name: str) -> Plan:
    split, recompute = SPLITS[name]
    model = "gpt3_6_7b" if name == "tied" else "llama3_8b"
    return plan_of(folder, PLAN.format(model=model, split=split, recompute=recompute))


def _both(plan: Plan) -> tuple[CostedPlan, CostedPlan]:
    once, each = propagated(plan), propagated(replace(plan))
    return cost_plan(once), cost_plan(each, semantic_collectives(each))


def _same(once: CostedPlan, each: CostedPlan) -> None:
    assert once.step == each.step and once.memory == each.memory and once.limits == each.limits
    assert once.slowest == each.slowest and once.collectives == each.collectives


@pytest.mark.parametrize("path", [*BUNDLED, *FIELD], ids=lambda p: p.stem)
def test_bundled_plans(path: Path) -> None:
    _same(*_both(load(path)))


@pytest.mark.parametrize("name", SPLITS)
def test_pipelines_whose_ranks_differ(tmp_path: Path, name: str) -> None:
    plan = _split(tmp_path, name)
    once, each = _both(plan)
    _same(once, each)
    some_are_identical = name != "every_third"
    assert (len({*rank_classes(plan)}) < plan.pipeline) == some_are_identical
    assert (len(once.timed.rows) < len(each.timed.rows)) == some_are_identical
