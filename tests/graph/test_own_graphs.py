"""Hardware files that write a machine as a graph of links: read, refused with a code and a place, and costed."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from textwrap import dedent

import pytest

from planc.checks import rules
from planc.costing.machine.collective_time import transfer_s
from planc.costing.machine.group import device_group
from planc.costing.routes.fabric import Fabric
from planc.diag.diagnostic import Diagnostic
from planc.driver import check, load
from planc.graph import MachineLinks, machine_links
from planc.graph.networks import graph_of
from planc.ir.hardware import Cluster
from planc.ir.mesh import Mesh
from tests.plans import cluster_of, written

CHIP = "chip h100(bf16 = 989 TFLOP/s, memory = 80 GiB, memory_bandwidth = 3350 GB/s)"
LINKS = """link nvlink(bandwidth = 450 GB/s, latency = 3 us)
link ib(bandwidth = 50 GB/s, latency = 8 us)
link pcie(bandwidth = 32 GB/s, latency = 1 us)
"""
HARDWARE = f"hardware acme\n{CHIP}\n{LINKS}"
PLAN = """plan example
import    "acme.plan"
model     llama3_8b
batch     64 x 8192 tokens microbatch 1
cluster   {cluster}
mesh      {mesh}
use       fsdp over fsdp
use       tp   over tp
use       sp   over tp
compute   fp32
recompute blocks
"""
TWO = """graph pod of h100
points gpu0, gpu1 as chip in node0
points switch0 as switch
wire gpu0, gpu1 to switch0 over nvlink
"""


def plan_on(folder: Path, graph: str, cluster: str = "pod", mesh: str = "fsdp 1 > tp 2", head: str = HARDWARE) -> Path:
    written(folder, head + dedent(graph), "acme")
    return written(folder, PLAN.format(cluster=cluster, mesh=mesh))


def findings(folder: Path, graph: str, **given: str) -> list[Diagnostic]:
    return [d for d in check(plan_on(folder, graph, **given)).diagnostics if d.severity == "error"]


def links_of(folder: Path, graph: str, mesh: str = "fsdp 1 > tp 2") -> tuple[Cluster, MachineLinks]:
    cluster = load(plan_on(folder, graph, mesh=mesh)).cluster
    return cluster, machine_links(cluster)


def test_two_chips_on_a_switch_are_a_machine(tmp_path: Path) -> None:
    cluster, links = links_of(tmp_path, TWO)
    assert (cluster.name, cluster.count, cluster.shape, cluster.link.name) == ("pod", 1, (2,), "nvlink")
    assert [v.name for v in links.vertices] == ["gpu0", "gpu1", "switch0"] and len(links.cables) == 2


TREE = "graph pod of h100\nfabric a"
WRONG = {
    "E1401": f"{TREE} = rack(chips = 2, link = nvlink)\nfabric b = rack(chips = 2, link = nvlink)\n",
    "E1402": TWO + "wire gpu9 to switch0 over pcie\n",
    "E1403": TWO + "points gpu0 as chip\n",
    "E1404": TWO + "wire switch0 to gpu1 over ib\n",
    "E1405": TWO + "wire gpu0 to gpu0 over ib\n",
    "E1406": "graph pod of h100\nfabric a = wheel(chips = 2, link = nvlink)\n",
    "E1407": "graph pod of h100\nfabric a = rack(chips = 2)\n",
    "E1408": "graph pod of h100\nfabric a = rack(chips = 2, link = nvlink, rails = 2)\n",
    "E1409": TWO + "points box as cupboard\n",
    "E1410": f"{TREE} = fat_tree(nodes = 65536, chips = 8, leaf = 32, spines = 8, link = nvlink, out = ib)\n",
    "E1411": "graph pod of h100\npoints a, b as switch\nwire a to b over ib\n",
    "E1412": TWO.replace("over nvlink", "over nvlink at 0 %"),
    "E1413": TWO.replace("over nvlink", "over roce"),
    "E1414": "graph pod of h100\nfabric a = fat_tree(nodes = 8, chips = 2, leaf = 4, link = nvlink, out = ib)\n",
    "E1415": TWO + "points gpu2, gpu3 as chip\n",
    "E1416": TWO + "graph other of h100\n",
    "E1417": TWO.replace("of h100", "of dual"),
    "E1418": TWO
    + "points gpu2, gpu3 as chip\npoints s1, s2 as switch\nwire gpu0, gpu2 to s1 over ib\n"
    + "wire gpu2, gpu3 to s2 over ib\n",
    "E1420": TWO.replace("graph pod of h100\n", "") + "node pod = 2 x h100 over nvlink\n",
    "E0108": TWO.replace("of h100", "of h1000"),
    "E0102": TWO + "wire gpu0 to\n",
}


@pytest.mark.parametrize("code", WRONG)
def test_a_mistake_has_its_code_and_its_place(code: str, tmp_path: Path) -> None:
    dual = CHIP.replace("h100(", "dual(devices = 2, ")
    found = findings(tmp_path, WRONG[code], head=f"{HARDWARE}{dual}\n")
    assert {d.code for d in found} == {code}, found
    assert all(d.span.file.endswith("acme.plan") for d in found if code != "E0102")


@pytest.mark.parametrize("field", ["bandwidth = 0 GB/s, latency = 1 us", "bandwidth = 4 GB/s, latency = 1 GB"])
def test_a_link_that_cannot_be_is_refused(field: str, tmp_path: Path) -> None:
    assert {d.code for d in findings(tmp_path, f"link odd({field})\n{TWO}")} == {"E0103"}


@pytest.mark.parametrize("cluster", ["4 x pod", "pod(2)"])
def test_a_graph_is_a_whole_machine(cluster: str, tmp_path: Path) -> None:
    assert {d.code for d in findings(tmp_path, TWO, cluster=cluster)} == {"E1419"}


def test_every_code_of_graphs_is_met_above() -> None:
    what_ifs, topologies = {"E1421", "E1422", "E1423"}, {"E1424", "E1425", "E1426"}  # test_what_if, test_topologies
    elsewhere = {"E1419"} | what_ifs | topologies
    assert {r.code for r in rules().values() if r.page.reads == "graph"} == {
        c for c in WRONG if c[:3] == "E14"
    } | elsewhere


def test_a_million_links_are_refused_before_they_are_made(tmp_path: Path) -> None:
    names = ", ".join(f"p{i}" for i in range(1200))
    million = f"graph pod of h100\npoints {names} as chip\npoints {names.replace('p', 'q')} as switch\n"
    found = findings(tmp_path, f"{million}wire {names} to {names.replace('p', 'q')} over ib\n")
    assert {d.code for d in found} == {"E1410"}


# Regular parts.

PARTS = {
    "rack": ("rack(chips = 8, link = nvlink)", 8, 1, 8),
    "rail": ("rail(nodes = 4, chips = 8, link = nvlink, out = ib)", 32, 4, 64),
    "rails with spines": ("rail(nodes = 4, chips = 2, leaf = 2, spines = 2, link = nvlink, out = ib)", 8, 4, 24),
    "fat tree": ("fat_tree(nodes = 8, chips = 4, leaf = 4, spines = 2, cards = 2, link = nvlink, out = ib)", 32, 8, 84),
    "dragonfly": ("dragonfly(groups = 4, switches = 2, nodes = 1, chips = 2, link = nvlink, out = ib)", 16, 8, 42),
    "torus": ("torus(shape = 4x4, link = ib, wrap = 1)", 16, 1, 48),
    "line": ("torus(shape = 4x2, link = ib)", 8, 1, 18),
}


@pytest.mark.parametrize("name", PARTS)
def test_a_regular_part_has_its_chips_and_links(name: str, tmp_path: Path) -> None:
    text, chips, units, cables = PARTS[name]
    cluster, links = links_of(tmp_path, f"graph pod of h100\nfabric a = {text}\n", mesh=f"fsdp {chips // 2} > tp 2")
    assert (len(links.devices), cluster.count, len(links.cables)) == (chips, units, cables)
    axes = Mesh.of({"fsdp": chips // 2, "tp": 2}, cluster.cause)
    assert all(transfer_s("all_reduce", 1e9, device_group(axes, cluster, (a,))) > 0 for a in ("fsdp", "tp"))


def test_a_tower_in_parts_costs_what_the_tower_does(tmp_path: Path) -> None:
    """Eight nodes with a card a chip, written as a fat tree, beside the same in levels."""
    text = "graph pod of h100\nfabric a = fat_tree(nodes = 8, chips = 8, leaf = 32, link = nvlink, out = ib)\n"
    cluster, _ = links_of(tmp_path, text, mesh="fsdp 8 > tp 8")
    written(
        tmp_path,
        f"{HARDWARE}node box = 8 x h100 over nvlink\nnetwork net = leaf 32 at 400 GB/s (latency = 8 us)\n",
        "acme",
    )
    tower = load(written(tmp_path, PLAN.format(cluster="8 x box", mesh="fsdp 8 > tp 8"))).cluster
    mesh = Mesh.of({"fsdp": 8, "tp": 8}, cluster.cause)
    for axes in (("tp",), ("fsdp",), ("fsdp", "tp")):
        for op in ("all_gather", "all_reduce", "all_to_all"):
            own, levels = (transfer_s(op, 1e11, device_group(mesh, c, axes)) for c in (cluster, tower))
            assert own == pytest.approx(levels, rel=2e-3), (op, axes)


def test_the_report_names_the_busiest_link_and_a_slower_one_is_slower(tmp_path: Path) -> None:
    rail = "graph pod of h100\nfabric a = rail(nodes = 2, chips = 4, link = nvlink, out = ib)\n"
    whole = check(plan_on(tmp_path, rail, mesh="fsdp 2 > tp 4"))
    assert not [d for d in whole.diagnostics if d.severity == "error"]
    assert {a.name: a.level for a in whole.axes} == {
        "fsdp": "a.node0.chip0-a.rail0_0",
        "tp": "a.node0.chip0-a.node0.switch",
    }
    slow = rail + "points extra as switch\nwire extra to a.rail0_0 over ib\n"
    assert check(plan_on(tmp_path, slow, mesh="fsdp 2 > tp 4")).step.time_s == pytest.approx(whole.step.time_s)


def test_on_rails_without_spines_a_peer_passes_on(tmp_path: Path) -> None:
    """All to all over three nodes: what is for another rail goes to its chip first, pair by pair or counted."""
    text = f"{TREE} = rail(nodes = 4, chips = 4, link = nvlink, out = ib)\n"
    _, links = links_of(tmp_path, text, mesh="fsdp 4 > tp 4")
    fabric = Fabric(links)
    counted = fabric.loads([], [(links.devices, 1.0)])
    assert dict(counted) == pytest.approx(dict(fabric.loads([(a, b, 1.0) for a, b in permutations(links.devices, 2)])))
    rails = {fabric.arc_name(arc): n for arc, n in counted.items() if "rail" in fabric.arc_name(arc)}
    assert {*rails.values()} == {4.0 * 3}  # what four chips send to three others on the rail


def test_a_link_with_half_its_bandwidth_takes_twice_as_long(tmp_path: Path) -> None:
    seconds = []
    for share in ("", " at 50 %"):
        cluster, _ = links_of(tmp_path, TWO.replace("over nvlink", f"over nvlink{share}"))
        mesh = Mesh.of({"fsdp": 1, "tp": 2}, cluster.cause)
        seconds.append(transfer_s("all_gather", 1e12, device_group(mesh, cluster, ("tp",))))
    assert seconds[1] == pytest.approx(2 * seconds[0], rel=1e-3)


def test_the_two_ways_of_a_link_may_differ(tmp_path: Path) -> None:
    text = TWO.replace("over nvlink", "over odd")
    head = f"{HARDWARE}link odd(bandwidth = 40 GB/s, back_bandwidth = 10 GB/s, latency = 1 us)\n"
    cluster = load(plan_on(tmp_path, text, head=head)).cluster
    graph = graph_of(cluster)
    assert (graph["gpu0"]["switch0"]["bytes_per_s"], graph["switch0"]["gpu0"]["bytes_per_s"]) == (40e9, 10e9)


def test_pcie_switches_and_sockets_are_crossed_as_they_are(tmp_path: Path) -> None:
    """Four GPUs on two PCIe switches, one a socket: pairs on a switch have its links, across all share the sockets'."""
    text = """graph box of h100
    points gpu0, gpu1, gpu2, gpu3 as chip in box
    points plx0, plx1 as switch in box
    points cpu0, cpu1 as socket in box
    wire gpu0, gpu1 to plx0 over pcie
    wire gpu2, gpu3 to plx1 over pcie
    wire plx0 to cpu0 over pcie
    wire plx1 to cpu1 over pcie
    wire cpu0 to cpu1 over pcie
    """
    cluster = load(plan_on(tmp_path, text, cluster="box", mesh="fsdp 2 > tp 2")).cluster
    mesh = Mesh.of({"fsdp": 2, "tp": 2}, cluster.cause)
    near, far = (device_group(mesh, cluster, (axis,)) for axis in ("tp", "fsdp"))
    assert (near.level, far.level) == ("gpu0-plx0", "cpu1-plx1")  # of equal ones
    assert transfer_s("all_gather", 1e12, far) == pytest.approx(2 * transfer_s("all_gather", 1e12, near), rel=1e-3)


def test_bundled_machines_have_no_graph_in_their_json() -> None:
    assert "own_graph" not in cluster_of("1 x h100_node").to_json()


def test_a_wire_to_a_part_itself_is_refused(tmp_path: Path) -> None:
    """A part has a name, and none of its points has that name: this was a traceback."""
    wired = f"{TREE} = rack(chips = 2, link = nvlink)\npoints box as switch\nwire a to box over ib\n"
    (d,) = findings(tmp_path, wired)
    assert d.code == "E1402" and "a.switch" in d.help
