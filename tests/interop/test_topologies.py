"""Topologies of other tools as hardware files: read, costed, and refused where they are cut short or count twice."""

from __future__ import annotations

import time
from itertools import product
from pathlib import Path

import pytest

from planc.cli import main
from planc.diag.errors import PlanError
from planc.driver import check, load
from planc.graph import MachineLinks, machine_links
from planc.interop.topologies import hardware_text, read_topology
from planc.interop.topologies.slurm import hosts
from tests.plans import written

PLAN = """plan example
import    "acme.plan"
model     llama3_8b
batch     64 x 8192 tokens microbatch 1
cluster   acme
mesh      {mesh}
use       fsdp over fsdp
use       tp   over tp
use       sp   over tp
compute   fp32
recompute blocks
"""
DGX = """\tGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNV12\tNV12\tNV12\tPXB\tSYS\t0-63\t0\t\tN/A
GPU1\tNV12\t X \tNV12\tNV12\tPXB\tSYS\t0-63\t0\t\tN/A
GPU2\tNV12\tNV12\t X \tNV12\tSYS\tPXB\t64-127\t1\t\tN/A
GPU3\tNV12\tNV12\tNV12\t X \tSYS\tPXB\t64-127\t1\t\tN/A
NIC0\tPXB\tPXB\tSYS\tSYS\t X \tSYS
NIC1\tSYS\tSYS\tPXB\tPXB\tSYS\t X

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_1
"""
PAIRS = """        GPU0  GPU1  GPU2  GPU3  CPU Affinity  NUMA Affinity
GPU0     X    NV4   PHB   SYS   0-31          0
GPU1    NV4    X    SYS   PHB   32-63         1
GPU2    PHB   SYS    X    NV4   0-31          0
GPU3    SYS   PHB   NV4    X    32-63         1
"""
XML = """<system version="1">
  <cpu numaid="0" affinity="0000ffff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="85">
    <pci busid="0000:07:00.0" class="0x060400" link_speed="16.0 GT/s PCIe" link_width="16">
      <pci busid="0000:0a:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">
        <gpu dev="0" sm="80" rank="0" gdr="1">
          <nvlink target="0000:c7:00.0" count="6" tclass="0x068000"/>
          <nvlink target="0000:c8:00.0" count="6" tclass="0x068000"/>
        </gpu>
      </pci>
      <pci busid="0000:0c:00.0" class="0x020700" link_speed="16.0 GT/s PCIe" link_width="16">
        <nic><net name="mlx5_0" dev="0" speed="200000" port="1" guid="0x1" maxconn="1" gdr="1"/></nic>
      </pci>
    </pci>
  </cpu>
  <cpu numaid="1">
    <pci busid="0000:8b:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="8">
      <gpu dev="1" sm="80" rank="1" gdr="1"><nvlink target="0000:c7:00.0" count="12" tclass="0x068000"/></gpu>
    </pci>
  </cpu>
</system>
"""
GRAPHS = """<graphs version="1">
  <graph id="1" pattern="1" crossnic="0" nchannels="1" speedintra="20" speedinter="20">
    <channel><gpu dev="0"/><gpu dev="1"/><gpu dev="2"/><gpu dev="3"/></channel>
  </graph>
  <graph id="0" pattern="4" crossnic="0" nchannels="3" speedintra="20" speedinter="12.5">
    <channel><net dev="0"/><gpu dev="0"/><gpu dev="1"/><gpu dev="2"/><gpu dev="3"/><net dev="0"/></channel>
    <channel><net dev="1"/><gpu dev="2"/><gpu dev="3"/><gpu dev="0"/><gpu dev="1"/><net dev="1"/></channel>
    <channel><net dev="1"/><gpu dev="2"/><gpu dev="1"/><gpu dev="0"/><gpu dev="3"/><net dev="1"/></channel>
  </graph>
</graphs>
"""
CONF = """# two leaves and a spine
SwitchName=leaf0 Nodes=node[00-01]
SwitchName=leaf1 Nodes=node[02-03] LinkSpeed=400
SwitchName=spine Switches=leaf[0-1]
"""
YAML = """- topology: fabric
  cluster_default: true
  tree:
    switches:
      - switch: spine
        children: leaf[0-1]
      - switch: leaf0
        nodes: node[00-01]
      - switch: leaf1
        nodes: node[02-03]
"""
BLOCKS = """BlockName=b1 Nodes=node[00-01]
BlockName=b2 Nodes=node[02-03]
BlockSizes=2,4
"""
DEVICES = ", ".join(
    f"TpuDevice(id={i}, process_index={i // 4}, coords=({x},{y},0), core_on_chip=0)"
    for i, (y, x) in enumerate(product(range(4), range(4)))
)
JAX = f"[{DEVICES}]"


def _infiniband() -> str:
    """Four hosts of two cards, on two leaves by 4xNDR, and these on two spines by two links of 4xHDR each."""
    ports: dict[str, list[tuple[str, int, str]]] = {}
    names = [f"{kind}{i}" for kind in ("spine", "leaf") for i in (0, 1)]
    heads = {f"S-{name}": f'Switch\t40 "S-{name}"\t\t# "MF0;{name}:Q/U1" base port 0 lid 1 lmc 0' for name in names}
    heads |= {f"H-n{n}c{c}": f'Ca\t1 "H-n{n}c{c}"\t\t# "node-{n} mlx5_{c}"' for n in range(4) for c in (0, 1)}
    heads["H-agg"] = 'Ca\t1 "H-agg"\t\t# "Mellanox Technologies Aggregation Node"'

    def join(one: str, other: str, rate: str) -> None:
        first, second = ports.setdefault(one, []), ports.setdefault(other, [])
        first.append((other, len(second) + 1, rate))
        second.append((one, len(first), rate))

    for n in range(4):
        for c in (0, 1):
            join(f"H-n{n}c{c}", f"S-leaf{n // 2}", "4xNDR")
    for leaf, spine in product((0, 1), (0, 1, 0, 1)):
        join(f"S-leaf{leaf}", f"S-spine{spine}", "4xHDR")
    join("H-agg", "S-spine0", "4xHDR")
    blocks = []
    for guid, head in heads.items():
        told = enumerate(ports[guid], 1)
        lines = [f'[{i}]\t"{peer}"[{at}]\t\t# "x 4xSDR" lid 4 {rate}' for i, (peer, at, rate) in told]
        blocks.append("\n".join(["vendid=0x2c9", f"{'switch' if guid[0] == 'S' else 'ca'}guid=0x1", head, *lines]))
    return "#\n# Topology file: generated on Mon Nov 23 10:00:00 2026\n#\n\n" + "\n\n".join(blocks) + "\n"


INFINIBAND = _infiniband()
READ = {
    "dgx": (DGX, "a100_node", "fsdp 2 > tp 2", 4),
    "pairs": (PAIRS, "a100_node", "fsdp 2 > tp 2", 4),
    "xml": (XML, "a100_node", "fsdp 1 > tp 2", 2),
    "graphs": (GRAPHS, "h100_node", "fsdp 2 > tp 2", 4),
    "conf": (CONF, "h100_node", "fsdp 4 > tp 8", 32),
    "yaml": (YAML, "h100_node", "fsdp 4 > tp 8", 32),
    "blocks": (BLOCKS, "h100_node", "fsdp 4 > tp 8", 32),
    "jax": (JAX, "tpu_v5e", "fsdp 4 > tp 4", 16),
    "infiniband": (INFINIBAND, "h100_node", "fsdp 4 > tp 8", 32),
}


def links_of(folder: Path, name: str) -> MachineLinks:
    text, machine, mesh, _ = READ[name]
    path = folder / "topology.txt"
    path.write_text(text)
    hardware, _ = read_topology(path, machine, "acme")
    written(folder, hardware, "acme")
    return machine_links(load(written(folder, PLAN.format(mesh=mesh))).cluster)


@pytest.mark.parametrize("name", READ)
def test_a_text_is_a_machine_that_a_plan_is_costed_on(name: str, tmp_path: Path) -> None:
    links = links_of(tmp_path, name)
    assert len(links.devices) == READ[name][3]
    report = check(tmp_path / "example.plan")
    assert report.step is not None and report.step.time_s > 0, report.diagnostics


def joined(links: MachineLinks) -> dict[frozenset[str], tuple[str, float]]:
    """Links by their ends: name and GB/s of all together."""
    return {
        frozenset(links.vertices[i].name for i in (c.source, c.target)): (
            links.kinds[c.kind].name, links.kinds[c.kind].bytes_per_s * c.links / 1e9,
        )
        for c in links.cables
    }  # fmt: skip


def test_nvlinks_meet_in_a_switch_where_all_are_joined_alike(tmp_path: Path) -> None:
    found = joined(links_of(tmp_path, "dgx"))
    assert found[frozenset(("gpu0", "nvswitch"))] == ("nvlink", 300.0)
    assert found[frozenset(("gpu0", "plx0_0"))][0] == found[frozenset(("nic0", "plx0_0"))][0] == "pcie"
    assert frozenset(("nic1", "plx0_0")) not in found and found[frozenset(("cpu0", "cpu1"))][0] == "upi"


def test_pairs_are_joined_directly(tmp_path: Path) -> None:
    found = joined(links_of(tmp_path, "pairs"))
    assert found[frozenset(("gpu0", "gpu1"))] == ("nvlink", 100.0) and frozenset(("gpu0", "gpu2")) not in found
    assert frozenset(("gpu0", "plx0_0")) not in found


def test_what_nccl_saw_is_as_wide_as_it_said(tmp_path: Path) -> None:
    found = joined(links_of(tmp_path, "xml"))
    assert found[frozenset(("gpu0", "nvswitch"))][1] == found[frozenset(("gpu1", "nvswitch"))][1] == 300.0
    assert found[frozenset(("gpu0", "pci_0000_07_00_0"))][1] == 32.0 and found[frozenset(("gpu1", "cpu1"))][1] == 16.0


def test_what_nccl_found_is_as_wide_as_all_channels(tmp_path: Path) -> None:
    found = joined(links_of(tmp_path, "graphs"))
    assert {ends: wide for ends, (_, wide) in found.items()} == {
        **{frozenset({f"gpu{i}", "channels"}): 60.0 for i in range(4)},
        frozenset({"gpu0", "net0"}): 12.5, frozenset({"gpu3", "net0"}): 12.5,
        frozenset({"gpu2", "net1"}): 25.0, frozenset({"gpu1", "net1"}): 12.5, frozenset({"gpu3", "net1"}): 12.5,
    }  # fmt: skip


def test_slurms_two_files_say_the_same(tmp_path: Path) -> None:
    conf, yaml = joined(links_of(tmp_path, "conf")), joined(links_of(tmp_path, "yaml"))
    assert conf == yaml and conf[frozenset(("sw_leaf0", "sw_spine"))][1] == 2 * 400


def test_chips_are_neighbours_by_their_coordinates(tmp_path: Path) -> None:
    found = joined(links_of(tmp_path, "jax"))
    assert frozenset(("at_0_0_0", "at_3_0_0")) in found and frozenset(("at_0_0_0", "at_2_0_0")) not in found


def test_lists_of_hosts() -> None:
    from planc.diag.span import Source

    source = Source.of("a", "")
    assert [*hosts(source, 1, "tux[0-2,12],login1,n[01-02]x", iter(range(9)))] == [
        "tux0", "tux1", "tux2", "tux12", "login1", "n01x", "n02x",
    ]  # fmt: skip


def test_a_network_is_as_wide_as_its_ports(tmp_path: Path) -> None:
    """Two cards a host, each with four of its GPUs; two links of 200 Gbit/s from a leaf to each spine."""
    links = links_of(tmp_path, "infiniband")
    found = joined(links)
    assert found[frozenset(("node_1_card0", "sw_leaf0"))] == ("infiniband_2", 50.0)
    assert found[frozenset(("sw_leaf0", "sw_spine1"))] == ("infiniband", 50.0)
    assert frozenset(("node_1_gpu3", "node_1_card0")) in found and frozenset(("node_1_gpu4", "node_1_card1")) in found
    assert not any("spine0_card" in name for ends in found for name in ends), "a switch's own card is no host's"
    assert {v.name: v.kind for v in links.vertices}["sw_spine1"] == "spine"


ENTITIES = '<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]>\n'
WRONG = {
    "nothing": ("hello\n", "E1424", 1),
    "a matrix cut short": (DGX[: DGX.index("\nGPU3\t")], "E1424", 4),
    "a row cut short": (DGX.replace("\tSYS\t0-63\t0\t\tN/A\nGPU1", "\nGPU1"), "E1424", 2),
    "a word of no meaning": (PAIRS.replace("PHB", "PHX", 1), "E1424", 2),
    "other words back": (PAIRS.replace("NV4", "NV2", 1), "E1424", 2),
    "a GPU twice": (PAIRS + PAIRS.splitlines()[4] + "\n", "E1425", 6),
    "xml cut short": (XML[:400], "E1424", 6),
    "entities": (ENTITIES + XML, "E1424", 1),
    "xml nested deep": ("<system>" + '<pci busid="0">' * 2000, "E1424", 1),
    "a graph cut short": (GRAPHS[:-40], "E1424", 8),
    "a channel less": (GRAPHS.replace('nchannels="3"', 'nchannels="4"'), "E1424", 5),
    "no ring": (GRAPHS.replace('pattern="4"', 'pattern="3"'), "E1424", 1),
    "a GPU less in a channel": (GRAPHS.replace('<gpu dev="0"/><gpu dev="3"/>', '<gpu dev="0"/>'), "E1424", 5),
    "a GPU twice in a channel": (
        GRAPHS.replace('<gpu dev="2"/><gpu dev="1"/>', '<gpu dev="0"/><gpu dev="1"/>'),
        "E1425",
        5,
    ),
    "a GPU without a number": (GRAPHS.replace('dev="3"', 'dev="x"'), "E1424", 5),
    "a bandwidth of nothing": (GRAPHS.replace('speedintra="20" speedinter="12.5"', 'speedintra="0"'), "E1424", 5),
    "cards without bandwidth": (GRAPHS.replace('speedinter="12.5"', ""), "E1424", 5),
    "no gpu": ('<system version="1"><cpu numaid="0"/></system>', "E1424", 1),
    "a GPU at the place of another": (XML.replace("0000:8b:00.0", "0000:0a:00.0"), "E1425", 4),
    "a gpu's number twice": (XML.replace('gpu dev="1"', 'gpu dev="0"'), "E1425", 16),
    "a line cut short": (CONF.replace("Nodes=node[02-03] LinkSpeed=400", "Nodes="), "E1424", 3),
    "a list cut short": (CONF.replace("node[02-03]", "node[02-"), "E1424", 3),
    "a million hosts": (CONF.replace("node[02-03]", "node[0-999999]"), "E1424", 3),
    "a node twice": (CONF.replace("node[02-03]", "node[01-03]"), "E1425", 3),
    "a switch twice": (CONF.replace("leaf1 Nodes", "leaf0 Nodes"), "E1425", 3),
    "a circle": (CONF.replace("SwitchName=leaf0 ", "SwitchName=leaf0 Switches=spine "), "E1426", 2),
    "an unknown switch": (CONF.replace("leaf[0-1]", "leaf[0-2]"), "E1424", 4),
    "no nodes": ("SwitchName=a Switches=b\nSwitchName=b\n", "E1424", 3),
    "yaml cut short": (YAML + "      - {switch: x, nodes: [", "E1424", 1),
    "a device twice": (JAX.replace("coords=(1,0,0)", "coords=(0,0,0)"), "E1425", 1),
    "a device less": (JAX.replace(DEVICES.split(", Tpu")[0] + ", ", ""), "E1426", 1),
    "a list that ends within a device": (JAX[:-20], "E1424", 1),
    "a network cut short": (INFINIBAND[: INFINIBAND.index("[2]", INFINIBAND.index("S-leaf1"))], "E1424", 8),
    "a port cut short": (INFINIBAND.replace(" lid 4 4xNDR", "", 1), "E1424", 25),
    "a switch there twice": (INFINIBAND + INFINIBAND[INFINIBAND.index("Switch") :], "E1425", 90),
    "a port there twice": (INFINIBAND.replace("[2]\t", "[1]\t", 1), "E1425", 9),
    "a link of no width": (INFINIBAND.replace("4xHDR", "0xHDR", 1), "E1424", 8),
    "a port of nobody": (INFINIBAND[INFINIBAND.index("[1]") :], "E1424", 1),
    "a node without its lines": (
        INFINIBAND.replace('1 "H-agg"', '1 "H-b"'),
        "E1424",
        12,
    ),
    "another peer back": (INFINIBAND.replace('"S-spine1"[', '"S-spine9"[', 1), "E1424", 17),
    "a head cut short": (INFINIBAND.replace('Ca\t1 "H-n0c0"\t\t# "node-0 mlx5_0"', "Ca\t1 "), "E1424", 48),
    "more cpus than a host has": ('<system version="1">' + '<cpu numaid="0"/>' * 70 + "</system>", "E1424", 1),
    "a chain of switches": (
        "".join(f"SwitchName=s{i} Switches=s{i + 1}\n" for i in range(5_000)) + "SwitchName=s5000 Nodes=n1\n",
        "E1424",
        33,
    ),
    "switches alone": ('Switch\t1 "S-a"\t# "a"\n', "E1424", 2),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_text_has_its_code_and_its_place(name: str, tmp_path: Path) -> None:
    text, code, line = WRONG[name]
    path = tmp_path / "topology.txt"
    path.write_text(text)
    with pytest.raises(PlanError) as raised:
        read_topology(path, "tpu_v5e" if "Tpu" in text else "h100_node")
    (found,) = raised.value.diagnostics
    assert (found.code, found.span.line) == (code, line), found


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError) as raised:
        read_topology(tmp_path, "h100_node")
    assert [d.code for d in raised.value.diagnostics] == ["E0104"]


def test_the_command_writes_a_file_that_a_plan_imports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, out = tmp_path / "topology.conf", tmp_path / "acme.plan"
    text.write_text(CONF)
    assert main(["graph", "--from", str(text), "--machine", "h100_node", "-o", str(out)]) == 0
    assert check(written(tmp_path, PLAN.format(mesh="fsdp 4 > tp 8"))).step is not None
    text.write_text(CONF[:60])
    assert main(["graph", "--from", str(text), "--machine", "h100_node"]) in (0, 1)
    assert main(["graph", "--from", str(text), "--machine", "cray"]) == 2
    assert main(["graph"]) == 2
    assert "h100_node" in capsys.readouterr().err


def test_places_are_not_looked_for_name_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """200,000 hosts in one line were looked for in it one by one, which took minutes."""
    looked: list[int] = []
    monkeypatch.setattr(hardware_text, "line_span", lambda *given: looked.append(1))
    path = tmp_path / "topology.conf"
    path.write_text("SwitchName=s1 Nodes=" + ",".join(f"n{i}" for i in range(300)) + "\n")
    assert "n299_switch" in read_topology(path, "h100_node")[0]
    assert looked == []


def test_links_of_a_gpu_that_is_below_no_cpu_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "system.xml"
    stray = '<pci busid="a"><gpu dev="0"><nvlink target="b" count="1"/></gpu></pci>'
    path.write_text(f'<system>{stray}<cpu numaid="0"><pci busid="b"><gpu dev="1"/></pci></cpu></system>')
    assert "gpu1" in read_topology(path, "h100_node")[0]


def test_a_machine_of_too_many_sentences_is_said_to_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "topology.conf"
    path.write_text("SwitchName=s1 Nodes=n[1-1500]\n")
    assert main(["graph", "--from", str(path), "--machine", "h100_node"]) == 1
    assert "E0117" in capsys.readouterr().out


def _matrix(gpus: int) -> str:
    names = [f"GPU{i}" for i in range(gpus)]
    rows = [f"{one}\t" + "\t".join("X" if one == other else "PIX" for other in names) for one in names]
    return "\n".join(["\t" + "\t".join(names), *rows]) + "\n"


LONG = {
    "empty lines": ("\n" * 300_000 + "x", "E1424"),
    "hosts of many lists": ("SwitchName=s Nodes=" + ",".join(f"a{i}x[0-19999]" for i in range(2_000)), "E1424"),
    "hosts of many lines": ("\n".join(f"SwitchName=s{i} Nodes=a{i}x[0-19999]" for i in range(2_000)), "E1424"),
    "a long name of many hosts": (f"SwitchName=s Nodes={'a' * 900_000}[0-19999]", "E1424"),
    "comments": ("<system>" + "<!--" * 200_000, "E1424"),
    "devices": (
        "TpuDevice(id=0, coords=(0,0,0)),\n" + "".join(f"TpuDevice(coords=({i},0,0)),\n" for i in range(9_000)),
        "E1425",
    ),
    "GPUs at one switch": (_matrix(400), ""),
}


@pytest.mark.parametrize("name", LONG)
def test_texts_of_many_devices_take_no_square(name: str, tmp_path: Path) -> None:
    text, code = LONG[name]
    (tmp_path / "x.txt").write_text(text)
    began = time.process_time()
    if code:
        with pytest.raises(PlanError) as raised:
            read_topology(tmp_path / "x.txt", "h100_node")
        assert raised.value.diagnostics[0].code == code
    else:
        read_topology(tmp_path / "x.txt", "h100_node")
    assert time.process_time() - began < 4.0
