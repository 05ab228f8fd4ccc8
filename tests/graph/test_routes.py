"""Collectives routed over links: as the closed forms, as networkx and a simulation of flows say, and within the cut."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise, permutations, product

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planc.costing.machine.topology import at_peak
from planc.costing.routes.algorithms import RoutedMachine, Routes, double_tree, machine_of
from planc.costing.routes.bound import gather_bound_s
from planc.costing.routes.fabric import Fabric
from planc.costing.routes.rings import exchange_loads, gather_s, groups_on_line, torus_lines
from planc.graph import Cable, LinkKind, MachineLinks, Vertex, machine_links
from planc.graph.networks import network
from planc.ir.mesh import Mesh
from planc.language import library
from tests.graph.closed_form import OPS, Cell, cells
from tests.graph.flow_simulation import shortest, simulated_s
from tests.plans import cluster_of

ANY = cluster_of("2 x h100_node")


@pytest.mark.parametrize("machine", sorted(library.machines()))
@pytest.mark.parametrize("devices", [8, 64])
def test_the_graph_and_the_closed_form_agree(machine: str, devices: int) -> None:
    found = list(cells(machine, devices))
    assert len(found) == len(OPS) * sum(range(devices.bit_length()))
    assert [cell for cell in found if cell.apart > cell.bound] == []


@pytest.mark.parametrize("machine", ["h100_node", "tpu_v5e", "tpu_7x"])
def test_and_where_several_levels_are_crossed(machine: str) -> None:
    assert [cell for cell in cells(machine, 512 if machine != "h100_node" else 256) if cell.apart > cell.bound] == []


def test_a_wrong_cell_would_be_seen() -> None:
    assert Cell("a", 8, 8, 1, "all_gather", 1.0, 1.01, 1e-9).apart > 1e-9


# Random graphs of switches, each with a chip.


def random_machine(degree: int, count: int, seed: int) -> MachineLinks:
    """Switches as a random regular graph, a chip on each; links of three speeds."""
    graph = nx.random_regular_graph(degree, count, seed=seed)
    vertices = [Vertex(f"chip{i}", "chip", i, i) for i in range(count)]
    vertices += [Vertex(f"switch{i}", "switch") for i in range(count)]
    kinds = tuple(LinkKind(f"link{n}", n * 1e9, 1e-6) for n in (1, 2, 3))
    cables = [Cable(i, count + i, 2, 4) for i in range(count)]
    cables += [Cable(count + a, count + b, (a * b + seed) % 3) for a, b in graph.edges]
    return MachineLinks(name="random", vertices=(*vertices,), cables=(*cables,), kinds=kinds)


def routes_over(links: MachineLinks, inner: int = 1) -> Routes:
    devices = len(links.devices)
    mesh = Mesh.of({"axis": devices // inner, "inner": inner}, ANY.cause)
    return Routes(RoutedMachine(links), mesh, ANY, ("axis",))


MACHINES = st.builds(random_machine, st.sampled_from([3, 4]), st.sampled_from([6, 8, 12]), st.integers(0, 10**6))


def connected(links: MachineLinks) -> bool:
    return nx.is_strongly_connected(network(links))


@settings(max_examples=15, deadline=None)
@given(MACHINES)
def test_no_way_beats_the_smallest_cut(links: MachineLinks) -> None:
    if connected(links):
        routes = routes_over(links)
        least = gather_bound_s(links, range(len(links.devices)))
        for op in ("all_gather", "all_to_all"):
            assert all(way.s_per_byte >= least * (1 - 1e-9) for way in routes.algorithms(op))


@settings(max_examples=15, deadline=None)
@given(MACHINES, st.integers(0, 10**6))
def test_more_bandwidth_is_never_slower(links: MachineLinks, seed: int) -> None:
    if connected(links):
        at = seed % len(links.cables)
        faster = (*links.cables[:at], links.cables[at]._replace(share=1.0 + seed % 7), *links.cables[at + 1 :])
        one, other = routes_over(links, 2), routes_over(replace(links, cables=faster), 2)
        for op in OPS:
            for before, after in zip(one.algorithms(op), other.algorithms(op), strict=True):
                assert after.s_per_byte <= before.s_per_byte * (1 + 1e-12)


@settings(max_examples=15, deadline=None)
@given(MACHINES)
def test_loads_are_those_of_every_path_by_itself(links: MachineLinks) -> None:
    """Every pair's flow over networkx's shortest paths, link by link; a slower link is slower in both."""
    if not connected(links):
        return
    graph, fabric = network(links), Fabric(links)
    wanted: dict[str, float] = defaultdict(float)
    for a, b in permutations(links.devices, 2):
        for path, share in shortest(graph, links.vertices[a].name, links.vertices[b].name):
            for u, v in pairwise(path):
                wanted[f"{u}-{v}"] += share
    for loads in (fabric.loads([(a, b, 1.0) for a, b in permutations(links.devices, 2)]),
                  fabric.loads([], [(links.devices, 1.0)])):  # fmt: skip
        assert {fabric.arc_name(a): n for a, n in loads.items()} == pytest.approx(wanted)


def leaf_and_spine(leaves: int, spines: int, chips: int) -> MachineLinks:
    """Chips on leaves, every leaf on every spine, and those of a leaf on a fast switch of their own too."""
    vertices = [Vertex(f"chip{i}", "chip", i, i // chips) for i in range(leaves * chips)]
    vertices += [Vertex(f"leaf{i}", "leaf") for i in range(leaves)] + [
        Vertex(f"spine{i}", "spine") for i in range(spines)
    ]
    vertices += [Vertex(f"fast{i}", "switch", unit=i) for i in range(leaves)]
    first = leaves * chips
    cables = [Cable(i, first + i // chips, 0) for i in range(first)]
    cables += [Cable(first + i, first + leaves + j, 1) for i, j in product(range(leaves), range(spines))]
    cables += [Cable(i, first + leaves + spines + i // chips, 2) for i in range(first)]
    kinds = tuple(LinkKind(name, rate, 1e-6) for name, rate in (("card", 5e9), ("up", 4e9), ("fast", 40e9)))
    return MachineLinks(name="clos", vertices=(*vertices,), cables=(*cables,), kinds=kinds)


def test_spines_are_reduced_to_one_and_back() -> None:
    links = leaf_and_spine(3, 2, 4)
    fabric, graph = Fabric(links), network(links)
    wanted: dict[str, float] = defaultdict(float)
    for a, b in permutations(links.devices, 2):
        for path, share in shortest(graph, links.vertices[a].name, links.vertices[b].name):
            for u, v in pairwise(path):
                wanted[f"{u}-{v}"] += share
    loads = fabric.loads([(a, b, 1.0) for a, b in permutations(links.devices, 2)])
    counted = fabric.loads([], [(links.devices, 1.0)])
    assert {fabric.arc_name(a): n for a, n in loads.items()} == pytest.approx({k: n for k, n in wanted.items() if n})
    assert {a: n for a, n in counted.items() if abs(n) > 1e-9} == pytest.approx(dict(loads))


def test_equal_paths_carry_as_many_links_as_they_have() -> None:
    """Two chips over two paths of switches, one of three links and one of one: neither switch is merged."""
    vertices = [Vertex("chip0", "chip", 0, 0), Vertex("chip1", "chip", 1, 1)]
    vertices += [Vertex(name, "switch") for name in ("a", "b", "up", "down")]
    ends = [(0, 2, 1), (1, 3, 1), (2, 4, 3), (4, 3, 3), (2, 5, 1), (5, 3, 1)]
    cables = tuple(Cable(one, other, 0, links) for one, other, links in ends)
    kinds = (LinkKind("link", 1e9, 1e-6),)
    fabric = Fabric(MachineLinks(name="square", vertices=(*vertices,), cables=cables, kinds=kinds))
    loads = {fabric.arc_name(arc): amount for arc, amount in fabric.loads([(0, 1, 8.0)]).items()}
    assert (loads["a-up"], loads["a-down"]) == (6.0, 2.0)


# Against a simulation of flows.


@pytest.mark.parametrize(("leaves", "spines", "chips"), [(2, 2, 4), (3, 3, 2), (4, 1, 3)])
def test_a_simulation_of_flows_takes_as_long(leaves: int, spines: int, chips: int) -> None:
    """A ring's step, and all to all at once, on small networks: within 5 %."""
    links = leaf_and_spine(leaves, spines, chips)
    routes, graph = routes_over(links), network(links)
    names = [links.vertices[v].name for v in links.devices]
    n = len(names)
    buffer = 1e9
    ring = [(a, b, buffer * (1 - 1 / n)) for a, b in zip(names, [*names[1:], names[0]], strict=True)]
    pairs = [(a, b, buffer / n) for a, b in permutations(names, 2)]
    (exchange,) = routes.algorithms("all_to_all")
    assert simulated_s(graph, pairs) == pytest.approx(exchange.s_per_byte * buffer, rel=0.05)
    fabric, devices = Fabric(links), links.devices
    part = buffer * (1 - 1 / n)
    loads = fabric.loads([(a, b, part) for a, b in zip(devices, [*devices[1:], devices[0]], strict=True)])
    assert simulated_s(graph, ring) == pytest.approx(fabric.busiest(loads)[0], rel=0.05)


# Tori.


@pytest.mark.parametrize("shape", ["4x4x4", "2x4x4", "4x4x8"])
def test_an_exchange_along_dimensions_is_that_of_every_message(shape: str) -> None:
    """Each pair's message by itself, dimension after dimension, over the links of the whole torus."""
    cluster = at_peak(cluster_of(f"tpu_v5p({shape})"))
    lines, links = torus_lines(machine_links(cluster)), machine_links(cluster)
    loads: dict[tuple[object, ...], float] = defaultdict(float)
    for a, b in permutations([links.vertices[v].place for v in links.devices], 2):
        at = list(a)
        for d, (n, wrapped) in enumerate(zip(cluster.shape, cluster.wrap, strict=True)):
            ahead = (b[d] - at[d]) % n
            ways = [(1, 1.0 if b[d] > at[d] else 0.0), (-1, 1.0 if b[d] < at[d] else 0.0)]
            if wrapped and at[d] != b[d]:
                tie = 2 * ahead == n
                ways = [(1, 0.5 if tie else float(2 * ahead < n)), (-1, 0.5 if tie else float(2 * ahead > n))]
            for way, share in ways:
                here = at[d]
                while share and here != b[d]:
                    loads[d, (*at[:d], here, *at[d + 1 :]), way] += share
                    here = (here + way) % n
            at[d] = b[d]
    for d, (n, line) in enumerate(zip(cluster.shape, lines, strict=True)):
        one = exchange_loads(line, groups_on_line(n, range(n)))
        assert max(one.values()) * len(links.devices) / n == pytest.approx(
            max(v for k, v in loads.items() if k[0] == d)
        )


@given(st.lists(st.sampled_from([2, 3, 4, 8, 16]), min_size=1, max_size=3), st.data())
def test_a_gather_over_dimensions_ends_when_its_slowest_part_must(sizes: list[int], data: st.DataObject) -> None:
    """A mix of orders, found as a corner, against the bound of every set of dimensions."""
    from itertools import combinations
    from math import prod

    each = [data.draw(st.sampled_from([0.5, 1.0, 2.0, 4.0])) for _ in sizes]
    sets = [c for k in range(1, len(sizes) + 1) for c in combinations(range(len(sizes)), k)]
    bound = max((prod(sizes[d] for d in c) - 1) / prod(sizes) / sum(1 / each[d] for d in c) for c in sets)
    assert gather_s(sizes, each) == pytest.approx(bound)


@pytest.mark.parametrize("count", range(2, 40))
def test_two_trees_in_which_nobody_works_twice(count: int) -> None:
    """Each tree reaches all; a unit has children in one of the two at most (of even numbers), and two at most."""
    edges = double_tree(count)
    for tree in (edges[: count - 1], edges[count - 1 :]):
        graph = nx.DiGraph(tree)
        assert nx.is_arborescence(graph.reverse()) and len(graph) == count
        assert max(d for _, d in graph.in_degree) <= 2
    inner = [{parent for _, parent in tree} for tree in (edges[: count - 1], edges[count - 1 :])]
    assert count % 2 or not inner[0] & inner[1] or count == 2


def test_the_busiest_link_is_named_and_two_axes_share_it() -> None:
    cluster = at_peak(cluster_of("4 x h100_node"))
    mesh = Mesh.of({"fsdp": 4, "tp": 8}, cluster.cause)
    machine = machine_of(cluster)
    (way,) = [w for w in Routes(machine, mesh, cluster, ("fsdp",)).algorithms("all_gather") if w.name == "ring"]
    assert "nic0" in way.link and way.s_per_byte == pytest.approx(0.75 / 50e9)
    (near,) = [w for w in Routes(machine, mesh, cluster, ("tp",)).algorithms("all_gather") if w.name == "ring"]
    assert near.link.count("node") == 2 and near.s_per_byte == pytest.approx(7 / 8 / 450e9)
