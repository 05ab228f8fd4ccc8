"""Goodput against the published run it takes its rates from, its own simulation, and first orders."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from planc.backends.common.source_writer import fill
from planc.cli import main
from planc.costing.step.goodput import (
    Reliability,
    best_interval_s,
    failures_per_day,
    goodput,
    state_bytes,
    useful_share,
    young_interval_s,
)
from planc.driver import check, load
from planc.graph.from_parts import links_of_graph
from planc.ir.plan import Plan
from tests.plans import ROOT, cpu_plan

PLAN = load(ROOT / "plans/llama3_70b_h100.plan")


def test_llama3_s_interruptions_and_effective_time() -> None:
    """16,384 H100s: 419 failures in 54 days, and more than 90 % of the time spent training."""
    large = load(ROOT / "plans/llama3_70b_h100.plan", set={"nodes": 2048})
    found = goodput(large, mfu=0.4)
    assert found.interruptions_per_day * 54 == pytest.approx(419)
    assert 0.9 < found.runtime < 1
    assert found.productivity == pytest.approx(0.4 * found.runtime)


def test_a_checkpoint_holds_masters_and_moments() -> None:
    """12 bytes a parameter in fp32, written by all chips together."""
    assert state_bytes(PLAN) == 12 * 70_553_706_496
    found = goodput(PLAN, 0.4, Reliability(storage_bytes_per_s_per_chip=1e9))
    assert found.checkpoint_s == pytest.approx(12 * 70_553_706_496 / 512e9)


def test_the_report_holds_it() -> None:
    report = check(PLAN)
    assert report.step is not None
    assert report.goodput == goodput(PLAN, report.step.mfu)


@pytest.mark.parametrize(("stall_s", "between_s"), [(1.0, 1e6), (30.0, 1e5), (600.0, 1e4), (3000.0, 3000.0)])
def test_no_other_interval_is_better(stall_s: float, between_s: float) -> None:
    best = best_interval_s(stall_s, between_s)
    share = useful_share(best, stall_s, 100.0, between_s)
    for factor in (0.5, 0.9, 0.99, 1.01, 1.1, 2.0):
        assert useful_share(best * factor, stall_s, 100.0, between_s) < share


def test_young_s_interval_is_the_first_order() -> None:
    """sqrt(2 C M), and the next term of its series: C / 3 - C (Daly 2006)."""
    for stall_s in (0.01, 1.0, 10.0):
        exact, young = best_interval_s(stall_s, 1e6), young_interval_s(stall_s, 1e6)
        assert exact == pytest.approx(young - stall_s * 2 / 3, rel=1e-4)


def test_the_share_is_what_a_simulation_finds() -> None:
    """Failures drawn at random, restarts that fail too."""
    interval_s, stall_s, restart_s, between_s = 900.0, 60.0, 300.0, 3000.0
    chance = random.Random(7)
    wall = trained = 0.0
    failure = chance.expovariate(1 / between_s)
    for _ in range(40_000):
        ready = False
        while not ready:
            if failure >= interval_s + stall_s:
                failure -= interval_s + stall_s
                wall += interval_s + stall_s
                trained += interval_s
                ready = True
            else:
                wall += failure
                failure = chance.expovariate(1 / between_s)
                while failure < restart_s:
                    wall += failure
                    failure = chance.expovariate(1 / between_s)
                wall += restart_s
                failure -= restart_s
    assert trained / wall == pytest.approx(useful_share(interval_s, stall_s, restart_s, between_s), rel=0.02)


def test_more_chips_and_slower_storage_leave_less() -> None:
    base = goodput(PLAN, 0.4).runtime
    slow = goodput(PLAN, 0.4, Reliability(storage_bytes_per_s_per_chip=1e6)).runtime
    many = goodput(replace(PLAN, cluster=replace(PLAN.cluster, count=64_000)), 0.4).runtime
    waiting = goodput(PLAN, 0.4, Reliability(stall=0.1)).runtime
    assert slow < base < waiting
    assert many < base


def test_a_hopeless_cluster_has_none() -> None:
    """Failures every second: nothing overflows."""
    assert goodput(PLAN, 0.4, Reliability(failures_per_chip_s=1.0)).runtime == pytest.approx(0.0, abs=1e-9)


RACK = """hardware mine
chip chip_x(memory = 80 GiB, memory_bandwidth = 3 TB/s, bf16 = 900 TFLOP/s<chip>)
link near(bandwidth = 400 GB/s, latency = 2 us)
link out(bandwidth = 50 GB/s, latency = 5 us<out>)
graph mine of chip_x
fabric net = rail(nodes = 4, chips = 8, spines = 2, uplinks = 3, link = near, out = out)
"""
OF_RACK = """plan of_rack
import "mine.plan"
model llama_micro
batch 64 x 64 tokens microbatch 1
cluster mine
mesh dp 32
use ddp over dp
compute fp32
"""


def _on_rack(folder: Path, chip: str = "", out: str = "") -> Plan:
    (folder / "mine.plan").write_text(fill(RACK, chip=chip, out=out))
    path = folder / "of_rack.plan"
    path.write_text(OF_RACK)
    return load(path)


def test_failures_are_counted_by_component(tmp_path: Path) -> None:
    """Chips and links of the graph by the rates of their file; a day of a year of 365.25."""
    plan = _on_rack(tmp_path, chip=", failures = 0.5", out=", failures = 0.1")
    found = goodput(plan, 0.4).failures_per_day
    assert plan.cluster.own_graph is not None
    machine = links_of_graph(plan.cluster.name, plan.cluster.own_graph)
    cables = sum(c.links for c in machine.cables if machine.kinds[c.kind].name == "out")
    assert cables >= 32
    assert found == {"chips": pytest.approx(32 * 0.5 / 365.25), "out": pytest.approx(cables * 0.1 / 365.25)}
    assert goodput(plan, 0.4).interruptions_per_day == pytest.approx(sum(found.values()))


def test_chips_without_a_rate_leave_the_network_s_failures_to_its_links(tmp_path: Path) -> None:
    whole = goodput(_on_rack(tmp_path), 0.4).failures_per_day
    assert whole == {"chips": pytest.approx(32 * 419 / (16_384 * 54))}
    beside = goodput(_on_rack(tmp_path, out=", failures = 0.1"), 0.4).failures_per_day
    assert beside["chips"] == pytest.approx(32 * (419 - 35) / (16_384 * 54))


def test_the_report_names_the_components(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _on_rack(tmp_path, chip=", failures = 0.5", out=", failures = 100")
    main(["check", str(tmp_path / "of_rack.plan")])
    assert "(chips 0.044, out " in capsys.readouterr().out


@pytest.mark.parametrize(("machine", "links"), [("8 x h100_node", 64), ("tpu_v5p(4x4x4)", 192), ("tpu_v5p(2x2x1)", 4)])
def test_links_of_machines_that_are_no_graph(machine: str, links: int) -> None:
    """One of each chip in a node; in a torus those between neighbours, round where it wraps."""
    plan = cpu_plan("machine", "dp 4", "use ddp over dp", batch="64 x 64 tokens microbatch 1", cluster=machine)
    link = replace(plan.cluster.link, failures_per_year=2.0)
    cluster = replace(plan.cluster, link=link)
    found = failures_per_day(replace(plan, cluster=cluster), Reliability())
    assert found[link.name] == pytest.approx(links * 2.0 / 365.25)
