"""`--with`: a plan on its machine with something otherwise, as if the hardware file had said so."""

from __future__ import annotations

from pathlib import Path

import pytest

from planc.compare.what_if import WhatIf, what_if
from planc.diag.diagnostic import Diagnostic
from planc.diag.errors import PlanError
from planc.driver import check, examine
from planc.language.what_if import read_what_ifs
from tests.graph.test_own_graphs import HARDWARE, PLAN
from tests.plans import written

RAIL = "graph pod of h100\nfabric a = rail(nodes = 4, chips = 4, link = nvlink, out = ib{more})\n"
CLOS = "fat_tree(nodes = 8, chips = 4, leaf = 4, spines = 2, link = nvlink, out = ib{more})"
TREE = f"graph pod of h100\nfabric a = {CLOS}\n"
MESH = {RAIL: "fsdp 4 > tp 4", TREE: "fsdp 8 > tp 4"}
BUNDLED = PLAN.replace('import    "acme.plan"\n', "")


def plan_on(folder: Path, graph: str, more: str = "", head: str = HARDWARE) -> Path:
    written(folder, head + graph.format(more=more), "acme")
    return written(folder, PLAN.format(cluster="pod", mesh=MESH[graph]))


def answer(plan: Path, *changes: str) -> WhatIf:
    return what_if(examine(plan, targets=()), changes)[0]


def findings(plan: Path, *changes: str) -> list[Diagnostic]:
    with pytest.raises(PlanError) as raised:
        answer(plan, *changes)
    return [d for d in raised.value.diagnostics if d.severity == "error"]


@pytest.mark.parametrize("share", [25, 50, 200])
def test_links_of_a_name_are_as_if_the_file_said_so(share: int, tmp_path: Path) -> None:
    found = answer(plan_on(tmp_path, TREE), f"links ib at {share} %")
    head = HARDWARE.replace("link ib(bandwidth = 50 GB/s", f"link ib(bandwidth = {50 * share / 100} GB/s")
    wanted = check(plan_on(tmp_path, TREE, head=head)).step
    assert wanted is not None and found.after.step_s == pytest.approx(wanted.time_s, rel=1e-12)


def test_a_slow_link_is_the_one_that_the_axis_waits_for(tmp_path: Path) -> None:
    found = answer(plan_on(tmp_path, RAIL), "link a.node1.chip2-a.rail2_0 at 10 %")
    fsdp = next(a for a in found.axes if a.axes == "fsdp")
    assert fsdp == found.axes[0] and fsdp.after_s > 5 * fsdp.before_s
    assert found.after.busiest_link in ("a.node1.chip2-a.rail2_0", "a.rail2_0-a.node1.chip2")
    assert next(a for a in found.axes if a.axes == "tp").after_s == pytest.approx(found.axes[-1].before_s)


def test_the_order_of_the_ends_does_not_matter(tmp_path: Path) -> None:
    plan = plan_on(tmp_path, TREE)
    one, other = (answer(plan, f"link {ends} at 20 %") for ends in ("a.leaf1-a.spine0", "a.spine0 - a.leaf1"))
    assert one.after.step_s == other.after.step_s > one.before.step_s


def test_a_spine_less_is_as_if_the_file_had_one_less(tmp_path: Path) -> None:
    found = answer(plan_on(tmp_path, TREE), "spine a.spine1 gone")
    one = TREE.replace("spines = 2", "spines = 1")
    MESH[one] = MESH[TREE]
    wanted = check(plan_on(tmp_path, one)).step
    assert wanted is not None and found.after.step_s == pytest.approx(wanted.time_s, rel=1e-9)


def test_a_host_less_takes_a_part_of_the_batch(tmp_path: Path) -> None:
    found = answer(plan_on(tmp_path, TREE), "host a.node3 gone")
    assert found.after.mesh == {"fsdp": 7, "tp": 4} and found.after.devices == 28
    assert found.after.tokens_per_s == pytest.approx(found.before.tokens_per_s * 7 / 8, rel=0.1)


def test_a_rail_less_is_carried_by_the_others(tmp_path: Path) -> None:
    """The bytes of the lost rail go over three others: a third more on each, or so."""
    found = answer(plan_on(tmp_path, RAIL), "rail 1 gone")
    fsdp = next(a for a in found.axes if a.axes == "fsdp")
    assert 1.25 < fsdp.after_s / fsdp.before_s < 1.45


def test_twice_the_oversubscription_halves_the_uplinks(tmp_path: Path) -> None:
    found = answer(plan_on(tmp_path, TREE), "oversubscription x 2")
    slow = HARDWARE + "link up(bandwidth = 25 GB/s, latency = 8 us)\n"
    wanted = check(plan_on(tmp_path, TREE, ", up = up", head=slow)).step
    assert wanted is not None and found.after.step_s == pytest.approx(wanted.time_s, rel=1e-12)


def test_dealt_nodes_cross_the_spines(tmp_path: Path) -> None:
    found = answer(plan_on(tmp_path, TREE), "nodes dealt over 2 leaves")
    assert found.after.step_s > found.before.step_s
    assert "spine" in found.after.busiest_link or "spine" in found.axes[0].after_link


def test_changes_add_up(tmp_path: Path) -> None:
    plan = plan_on(tmp_path, TREE)
    quarter = answer(plan, "links ib at 50 %", "links ib at 50 %").after.step_s
    assert quarter == pytest.approx(answer(plan, "links ib at 25 %").after.step_s, rel=1e-12)


@pytest.mark.parametrize(
    ("machine", "mesh", "change", "axis"),
    [
        ("4 x h100_node", "fsdp 4 > tp 8", "link node1.chip2-node1.switch at 20 %", "tp"),
        ("4 x h100_node", "fsdp 4 > tp 8", "rail 2 gone", "fsdp"),
        ("4 x h100_node", "fsdp 4 > tp 8", "links leaf at 50 %", "fsdp"),
        ("1 x tpu_v5e(4x8)", "fsdp 4 > tp 8", "link slice0.chip0_0-slice0.chip0_1 at 50 %", "tp"),
    ],
)
def test_bundled_machines_have_links_too(machine: str, mesh: str, change: str, axis: str, tmp_path: Path) -> None:
    plan = written(tmp_path, BUNDLED.format(cluster=machine, mesh=mesh))
    found, plain = answer(plan, change), check(plan).step
    assert plain is not None and found.before.step_s == pytest.approx(plain.time_s, rel=0.01)
    assert found.axes[0].axes == axis and found.after.step_s > found.before.step_s


WRONG = {
    "rale 2 gone": ("E1421", 1),
    "link a.leaf0-a.leaf0 gone": ("E1421", 1),
    "link a.leaf0-a.spine0 at 0 %": ("E1421", 1),
    "oversubscription x 0": ("E1421", 1),
    "": ("E1421", 1),
    "link a.leaf0-a.spine9 at 50 %": ("E1422", 14),
    "link a.leaf0-a.leaf1 gone": ("E1422", 14),
    "links roce at 50 %": ("E1422", 7),
    "host a.node9 gone": ("E1422", 6),
    "switch a.leaf9 gone": ("E1422", 8),
    "rail 9 gone": ("E1422", 6),
    "nodes dealt over 3 leaves": ("E1422", 18),
    "leaf a.leaf1 gone": ("E1423", 1),
}


@pytest.mark.parametrize("change", WRONG)
def test_a_wrong_one_has_its_code_and_its_place(change: str, tmp_path: Path) -> None:
    code, column = WRONG[change]
    (found,) = findings(plan_on(tmp_path, TREE), change)
    assert (found.code, found.span.file, found.span.column) == (code, "--with", column), found


def test_every_wrong_text_is_named() -> None:
    with pytest.raises(PlanError) as raised:
        read_what_ifs(["rail 2 gone", "rail two gone", "x" * 10000])
    assert [d.span.line for d in raised.value.diagnostics] == [2, 3]
    assert all(len(d.message) < 120 for d in raised.value.diagnostics)


def test_a_plan_without_a_data_axis_cannot_lose_a_host(tmp_path: Path) -> None:
    text = PLAN.replace("use       fsdp over fsdp\n", "use pp over pp as 1f1b\n")
    written(tmp_path, HARDWARE + TREE.format(more=""), "acme")
    plan = written(tmp_path, text.format(cluster="pod", mesh="pp 8 > tp 4"))
    assert {d.code for d in findings(plan, "host a.node1 gone")} == {"E1423"}
