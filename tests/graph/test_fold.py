"""One group of each kind stands for those that symmetry makes alike: as when every group is routed."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import prod
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planc.costing.routes.algorithms import RoutedMachine, Routes
from planc.costing.routes.fabric import Fabric
from planc.driver import load
from planc.graph import machine_links
from planc.graph.from_parts import links_of_graph
from planc.graph.links import MachineLinks
from planc.ir.hardware import Cluster, GraphPart, Link, OwnGraph
from planc.ir.mesh import Mesh
from tests.graph.closed_form import OPS
from tests.graph.test_own_graphs import links_of, plan_on
from tests.plans import cluster_of, written

MACHINES = {
    "fat tree": "fat_tree(nodes = 16, chips = 4, leaf = 4, spines = 2, uplinks = 2, link = nvlink, out = ib)",
    "shared cards": "fat_tree(nodes = 16, chips = 4, leaf = 4, spines = 2, cards = 2, link = nvlink, out = ib)",
    "rails": "rail(nodes = 16, chips = 4, leaf = 4, spines = 2, link = nvlink, out = ib)",
    "rails alone": "rail(nodes = 16, chips = 4, link = nvlink, out = ib)",
    "rack": "rack(chips = 64, link = nvlink)",
    "dragonfly": "dragonfly(groups = 4, switches = 2, nodes = 4, chips = 2, link = nvlink, out = ib)",
    "torus": "torus(shape = 4x4x4, link = ib, wrap = 1)",
    "dragonfly, single": "dragonfly(groups = 8, switches = 1, nodes = 4, chips = 2, link = nvlink, out = ib)",
    "grid": "torus(shape = 4x2x8, link = ib, wrap = 0)",
    "ring": "torus(shape = 64x1, link = ib, wrap = 1)",
}
AXES = (("a",), ("b",), ("c",), ("a", "b"), ("a", "c"), ("b", "c"), ("a", "b", "c"))


@pytest.mark.parametrize("sizes", [(4, 4, 4), (2, 16, 2), (8, 2, 4)], ids=str)
@pytest.mark.parametrize("name", MACHINES)
def test_one_group_of_each_kind_is_as_good_as_all(name: str, sizes: tuple[int, ...], tmp_path: Path) -> None:
    text = f"graph pod of h100\nfabric a = {MACHINES[name]}\n"
    cluster, links = links_of(tmp_path, text, mesh="fsdp 16 > tp 4")
    assert _as_when_all_are_routed(cluster, links, sizes) >= 3


@pytest.mark.parametrize("sizes", [(2, 32, 8), (16, 16, 2)], ids=str)
@pytest.mark.parametrize("node", ["h100_node", "mi300x_node"])
def test_groups_on_bundled_nodes_are_folded(node: str, sizes: tuple[int, ...]) -> None:
    cluster = cluster_of(f"64 x {node}")
    assert _as_when_all_are_routed(cluster, machine_links(cluster), sizes) >= 3


def _as_when_all_are_routed(cluster: Cluster, links: MachineLinks, sizes: tuple[int, ...]) -> int:
    """Compare what one group of each kind says with what all say; return for how many axes there were fewer."""
    mesh = Mesh.of(dict(zip("abc", sizes, strict=True)), cluster.cause)
    slow = replace(links, cables=tuple(c._replace(share=0.3) if i % 37 == 5 else c for i, c in enumerate(links.cables)))
    folded, machine = 0, RoutedMachine(slow if sum(sizes) % 4 else links)
    plain = RoutedMachine(replace(machine.links, symmetry=None))
    for axes in AXES:
        few, every = (Routes(one, mesh, cluster, axes) for one in (machine, plain))
        folded += len(few.groups) < len(every.groups)
        for op in OPS:
            for one, other in zip(few.algorithms(op), every.algorithms(op), strict=True):
                assert one.s_per_byte == pytest.approx(other.s_per_byte, rel=1e-9), (axes, op, one, other)
                assert one.latency_s == pytest.approx(other.latency_s, rel=1e-9)
    return folded


def test_a_machine_of_several_parts_is_routed_whole(tmp_path: Path) -> None:
    rack = "rack(chips = 2, link = nvlink)"
    text = f"graph pod of h100\nfabric a = {rack}\nfabric b = {rack}\nwire a.switch to b.switch over ib\n"
    cluster, links = links_of(tmp_path, text, mesh="fsdp 2 > tp 2")
    assert links.symmetry is None and machine_links(cluster) is links


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from([1, 2, 3, 4, 5, 8]), min_size=1, max_size=3), st.booleans(), st.data())
def test_ways_on_a_torus_are_those_that_a_search_finds(shape: list[int], wrap: bool, data: st.DataObject) -> None:
    shape = [*shape, 4] if prod(shape) < 4 else shape
    link = Link(name="ib", bandwidth_bytes_per_s=50e9, latency_s=8e-6)
    part = GraphPart(name="a", kind="torus", numbers={"wrap": int(wrap)}, links={"link": "ib"}, shape=(*shape,))
    links = links_of_graph("pod", OwnGraph(links=(link,), parts=(part,), points=(), wires=()))
    known, searched = Fabric(links), Fabric(replace(links, symmetry=None))
    chip = st.sampled_from(links.devices)
    flows = data.draw(st.lists(st.tuples(chip, chip, st.sampled_from([0.5, 1.0, 3.0])), max_size=30))
    members = data.draw(st.lists(chip, min_size=2, max_size=12, unique=True))
    for sent in ((flows, ()), ([], [(members, 1.0)]), (flows, [(members, 2.0)])):
        assert known.loads(*sent) == pytest.approx(searched.loads(*sent), rel=1e-12)
    for a, b in product(members, members):
        assert known.latency_s(a, b) == pytest.approx(searched.latency_s(a, b), rel=1e-12)


def test_every_axis_of_16384_devices_has_one_group_to_route(tmp_path: Path) -> None:
    part = "fat_tree(nodes = 2048, chips = 8, leaf = 32, spines = 32, uplinks = 4, link = nvlink, out = ib)"
    plan = plan_on(tmp_path, f"graph pod of h100\nfabric a = {part}\n", mesh="fsdp 2048 > tp 8")
    cluster = load(written(plan.parent, plan.read_text().replace("64 x", "2048 x"))).cluster
    links = machine_links(cluster)
    mesh = Mesh.of({"pp": 4, "dp": 4, "fsdp": 128, "tp": 8}, cluster.cause)
    for axes in (("pp",), ("dp",), ("fsdp",), ("tp",), ("dp", "fsdp")):
        routes = Routes(RoutedMachine(links), mesh, cluster, axes)
        assert len(routes.groups) == 1 and routes.fold is not None
        assert routes.fold.copies * routes.size == 16384


def test_a_dragonfly_routes_one_group_of_axes_inside_its_groups(tmp_path: Path) -> None:
    part = "dragonfly(groups = 64, switches = 16, nodes = 2, chips = 8, link = nvlink, out = ib)"
    plan = plan_on(tmp_path, f"graph pod of h100\nfabric a = {part}\n", mesh="fsdp 2048 > tp 8")
    cluster = load(written(plan.parent, plan.read_text().replace("64 x", "2048 x"))).cluster
    links = machine_links(cluster)
    mesh = Mesh.of({"pp": 4, "dp": 16, "fsdp": 16, "ep": 2, "tp": 8}, cluster.cause)
    groups = {
        axes: len(Routes(RoutedMachine(links), mesh, cluster, axes).groups)
        for axes in (("tp",), ("ep", "tp"), ("fsdp",))
    }
    assert groups == {("tp",): 1, ("ep", "tp"): 1, ("fsdp",): 1}
    crossing = Routes(RoutedMachine(links), mesh, cluster, ("dp",))
    assert len(crossing.groups) == 16 * 4 and crossing.fold is not None
    assert crossing.fold.copies == 16
