"""Elasticities of a step: as by costing the plan on the better machine, on towers and on graphs of links."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from planc.costing.costed import CostedPlan
from planc.costing.elasticity import elasticities
from planc.driver import examine
from tests.graph.test_own_graphs import plan_on
from tests.plans import ROOT

TREE = "graph pod of h100\nfabric a = fat_tree(nodes = 8, chips = 4, leaf = 4, spines = 2, link = nvlink, out = ib)\n"


def costed_of(path: Path) -> CostedPlan:
    found = examine(path, targets=()).costed
    assert found is not None
    return found


def test_twice_the_bandwidth_is_costed_as_a_machine_of_its_own(tmp_path: Path) -> None:
    costed = costed_of(ROOT / "plans" / "llama3_70b_h100.plan")
    plan = costed.sharded.plan
    link = replace(plan.cluster.link, bandwidth_bytes_per_s=2 * plan.cluster.link.bandwidth_bytes_per_s)
    better = examine(replace(plan, cluster=replace(plan.cluster, link=link)), targets=()).costed
    assert better is not None
    found = next(e for e in elasticities(costed) if e.figure == "nvlink4 bandwidth")
    assert found.twice_s == pytest.approx(costed.step.time_s - better.step.time_s, rel=1e-9)


def test_on_a_graph_every_link_has_its_own(tmp_path: Path) -> None:
    costed = costed_of(plan_on(tmp_path, TREE, mesh="fsdp 8 > tp 4"))
    found = {e.figure: e for e in elasticities(costed)}
    assert {"nvlink bandwidth", "ib bandwidth", "nvlink latency", "ib latency"} <= {*found}
    assert "pcie bandwidth" not in found, "no link of the machine is called so"
    assert all(e.twice_s >= 0 for e in found.values())
    assert [*found.values()] == sorted(found.values(), key=lambda e: -e.twice_s)


def test_rates_and_bandwidths_together_shorten_no_more_than_the_step(tmp_path: Path) -> None:
    """The step is made of seconds that each fall with one figure, so that the percents add up to one at most."""
    for plan in ("llama3_70b_h100", "llama3_70b_v5p"):
        found = elasticities(costed_of(ROOT / "plans" / f"{plan}.plan"))
        assert 0.5 < sum(e.elasticity for e in found) <= 1.0
