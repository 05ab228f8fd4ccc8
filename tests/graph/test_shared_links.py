"""Transfers of state beside those of activations: as a simulation of flows says, and never on links that are busy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, permutations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planc.costing.costed import CostedPlan
from planc.costing.routes.algorithms import RoutedMachine, Routes
from planc.costing.routes.fabric import Flow
from planc.costing.routes.joint import LinkLoads, joint_shares
from planc.costing.step.critical_path import critical_path
from planc.costing.step.shared_links import NOTHING, LinkSeconds, beside, summed
from planc.costing.step.step_time import step_time
from planc.costing.step.transfers import LinkTimes
from planc.driver import examine
from planc.graph import MachineLinks
from planc.graph.networks import network
from planc.ir.hardware import Cluster
from planc.ir.mesh import Mesh
from tests.graph.flow_simulation import simulated_s
from tests.graph.test_fold import AXES, MACHINES
from tests.graph.test_own_graphs import HARDWARE, PLAN, links_of, plan_on
from tests.graph.test_routes import ANY, leaf_and_spine
from tests.plans import written

TREE = "fat_tree(nodes = 8, chips = 4, leaf = 4, spines = 2, link = nvlink, out = ib)"
POD = f"graph pod of h100\nfabric a = {TREE}\n"


class Rings:
    """Rings along one axis of a mesh, all at once: as flows, and as the link loads that planc makes of them."""

    def __init__(self, machine: RoutedMachine, mesh: Mesh, cluster: Cluster, axis: str, buffer: float) -> None:
        self.routes, self.buffer = Routes(machine, mesh, cluster, (axis,), folding=False), buffer
        way = self.routes.algorithms("all_gather")[0]
        assert way.name == "ring"
        self.loads, self.seconds = self.routes.loads_of(way, ord(axis[0])), way.s_per_byte * buffer

    def flows(self, vertices: MachineLinks) -> Iterator[tuple[str, str, float]]:
        for a, b, amount in self._flows():
            yield vertices.vertices[a].name, vertices.vertices[b].name, amount

    def _flows(self) -> Iterator[Flow]:
        for group in self.routes.groups:
            part = self.buffer * (1 - 1 / len(group))
            yield from ((a, b, part) for a, b in pairwise([*group, group[0]]))

    @property
    def on_links(self) -> LinkSeconds:
        return LinkSeconds(self.seconds, ((self.loads, self.seconds),))


@pytest.mark.parametrize("buffers", [(1e9, 1e9), (1e9, 0.2e9), (0.3e9, 1e9)], ids=str)
@pytest.mark.parametrize(("leaves", "spines"), [(2, 2), (4, 2), (4, 1)])
def test_two_collectives_at_once_take_as_long_as_in_a_simulation(
    leaves: int, spines: int, buffers: tuple[float, float]
) -> None:
    """Rings inside leaves and rings between them: over fast switches, over cards, and over both ways up."""
    links = replace(leaf_and_spine(leaves, spines, 2), symmetry=None)
    links = replace(links, vertices=tuple(v._replace(unit=v.device) for v in links.vertices))
    mesh, machine = Mesh.of({"outer": leaves, "inner": 2}, ANY.cause), RoutedMachine(links)
    one, other = (
        Rings(machine, mesh, ANY, axis, buffer) for axis, buffer in zip(("inner", "outer"), buffers, strict=True)
    )
    graph = network(links)
    alone = [simulated_s(graph, rings.flows(links)) for rings in (one, other)]
    assert alone == pytest.approx([one.seconds, other.seconds], rel=0.05)
    both = simulated_s(graph, [*one.flows(links), *other.flows(links)])
    after_s, _ = beside(one.on_links, other.on_links)
    assert both == pytest.approx(other.seconds + after_s, rel=0.05)


@pytest.mark.parametrize("buffers", [(1e9, 1e9), (1e9, 0.2e9), (0.3e9, 1e9)], ids=str)
def test_rings_over_the_same_cards_wait_for_each_other(buffers: tuple[float, float]) -> None:
    """Without fast switches both rings leave every chip by its one card."""
    links = leaf_and_spine(4, 2, 2)
    kept = tuple(c for c in links.cables if c.kind != 2)
    one_unit = tuple(v._replace(unit=v.device) for v in links.vertices if not v.name.startswith("fast"))
    links = replace(links, cables=kept, vertices=one_unit)
    mesh, machine = Mesh.of({"outer": 4, "inner": 2}, ANY.cause), RoutedMachine(links)
    one, other = (
        Rings(machine, mesh, ANY, axis, buffer) for axis, buffer in zip(("inner", "outer"), buffers, strict=True)
    )
    both = simulated_s(network(links), [*one.flows(links), *other.flows(links)])
    after_s, left = beside(one.on_links, other.on_links)
    assert both == pytest.approx(other.seconds + after_s, rel=0.05)
    assert 0 < after_s <= one.seconds and left.total_s < other.seconds


def test_a_slow_link_that_both_use_is_where_they_wait(tmp_path: Path) -> None:
    cluster, links = links_of(tmp_path, POD, mesh="fsdp 8 > tp 4")
    mesh = Mesh.of({"a": 8, "b": 4}, cluster.cause)
    machine = RoutedMachine(links)
    near, far = (_loads(machine, mesh, cluster, axes) for axes in (("b",), ("a",)))
    apart = beside(LinkSeconds(1.0, ((far, 1.0),)), LinkSeconds(1.0, ((near, 1.0),)))[0]
    again = beside(LinkSeconds(1.0, ((far, 1.0),)), LinkSeconds(1.0, ((far, 1.0),)))[0]
    assert apart == 0.0 and again == 1.0, "cards are no links of a node"


def _loads(machine: RoutedMachine, mesh: Mesh, cluster: Cluster, axes: tuple[str, ...]) -> LinkLoads:
    routes = Routes(machine, mesh, cluster, axes)
    return routes.loads_of(routes.algorithms("all_gather")[0], len(axes))


@pytest.mark.parametrize("sizes", [(4, 4, 4), (2, 16, 2), (8, 2, 4)], ids=str)
@pytest.mark.parametrize("name", MACHINES)
def test_what_is_folded_never_counts_less_than_every_group(name: str, sizes: tuple[int, ...], tmp_path: Path) -> None:
    """The busiest link of any mix of two collectives, by symmetry and link by link."""
    cluster, links = links_of(tmp_path, f"graph pod of h100\nfabric a = {MACHINES[name]}\n", mesh="fsdp 16 > tp 4")
    mesh = Mesh.of(dict(zip("abc", sizes, strict=True)), cluster.cause)
    slow = replace(links, cables=tuple(c._replace(share=0.3) if i % 37 == 5 else c for i, c in enumerate(links.cables)))
    exact = 0
    for given_links in (links, slow):
        folded, plain = RoutedMachine(given_links), RoutedMachine(replace(given_links, symmetry=None))
        few, every = ([_loads(m, mesh, cluster, axes) for axes in AXES] for m in (folded, plain))
        for i, j in permutations(range(len(AXES)), 2):
            mine, wanted = joint_shares([few[i], few[j]]), joint_shares([every[i], every[j]])
            for mix in (0.2, 1.0, 3.0):
                one, other = (max(a + mix * b for a, b in found) for found in (mine, wanted))
                assert one >= other * (1 - 1e-9)
                exact += one == pytest.approx(other, rel=1e-9)
    assert exact > 0.7 * 2 * 42 * 3


# Whole steps.


def step_s(folder: Path, part: str, mesh: str, nvlink: float, ib: float, batch: int) -> float:
    head = HARDWARE.replace("450 GB/s", f"{nvlink} GB/s").replace("bandwidth = 50 GB/s", f"bandwidth = {ib} GB/s")
    written(folder, f"{head}graph pod of h100\nfabric a = {part}\n", "acme")
    text = PLAN.format(cluster="pod", mesh=mesh).replace("batch     64 x 8192", f"batch     {batch} x 2048")
    found = examine(written(folder, text), targets=()).costed
    assert found is not None
    assert sum(p.seconds for p in critical_path(found)) == pytest.approx(found.step.time_s, rel=1e-9)
    exposed = sum(c.exposed_s for c in found.timed.collectives if c.row.op != "send_recv")
    assert exposed == pytest.approx(found.step.exposed_comm_s, rel=1e-9)
    return found.step.time_s


@settings(max_examples=8, deadline=None)
@given(
    st.sampled_from([TREE, TREE.replace("fat_tree", "rail").replace(" leaf = 4, spines = 2,", "")]),
    st.sampled_from(["fsdp 8 > tp 4", "tp 4 > fsdp 8", "fsdp 4 > tp 8"]),
    st.floats(4, 400), st.floats(2, 100), st.sampled_from([1.01, 1.3, 2.0, 10.0]), st.sampled_from([32, 64]),
)  # fmt: skip
def test_more_bandwidth_never_makes_a_step_slower(
    tmp_path_factory: pytest.TempPathFactory, part: str, mesh: str, near: float, far: float, more: float, batch: int
) -> None:
    folder = tmp_path_factory.mktemp("step")
    today = step_s(folder, part, mesh, near, far, batch)
    for faster in ((near * more, far), (near, far * more), (near * more, far * more)):
        assert step_s(folder, part, mesh, *faster, batch) <= today * (1 + 1e-9)


class Alone(LinkTimes):
    """Transfers of state that wait for those of activations, whatever links they use."""

    def links_of(self, *_: object) -> LinkSeconds:
        return NOTHING


def test_gathers_go_on_while_a_node_sends_its_activations(tmp_path: Path) -> None:
    """Sharded over nodes, tensor parallel inside them: no link is used by both, so that gathers which compute does not
    hide are hidden by activations too."""
    found = examine(_narrow(tmp_path, "fsdp 8 > tp 4"), targets=()).costed
    assert found is not None
    plain, disjoint, alone = (_exposed_s(found, links) for links in (LinkTimes(), LinkTimes(disjoint=True), Alone()))
    assert plain == pytest.approx(disjoint, rel=1e-9) and plain < 0.95 * alone
    ring = "graph pod of h100\nfabric a = torus(shape = 4x8, link = ib, wrap = 1)\n"
    crossed = examine(plan_on(tmp_path, ring, mesh="fsdp 8 > tp 4"), targets=()).costed
    assert crossed is not None
    assert _exposed_s(crossed, LinkTimes(disjoint=True)) < 0.99 * _exposed_s(crossed, LinkTimes())


def _exposed_s(costed: CostedPlan, links: LinkTimes) -> float:
    return step_time(costed.sharded, links=links).step.exposed_comm_s


def _narrow(folder: Path, mesh: str) -> Path:
    head = HARDWARE.replace("bandwidth = 50 GB/s", "bandwidth = 10 GB/s").replace("450 GB/s", "30 GB/s")
    return plan_on(folder, POD, mesh=mesh, head=head)


def test_sums_are_by_what_collectives_leave_on_links() -> None:
    assert summed([LinkSeconds(1.0), LinkSeconds(0.5)]) == LinkSeconds(1.5)
    assert beside(LinkSeconds(1.0), LinkSeconds(4.0))[1].total_s == 3.0
