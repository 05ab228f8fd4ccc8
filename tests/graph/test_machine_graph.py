"""The machine as a graph: what hardware files say is what the links carry, and other tools read it."""

from __future__ import annotations

import json
from io import StringIO
from math import prod
from pathlib import Path

import networkx as nx
import pytest

from planc.cli import main
from planc.cli.commands import graph as graph_command
from planc.graph import machine_links
from planc.graph.from_cluster import merged_links
from planc.graph.networks import exported, graph_of
from planc.ir.hardware import Cluster
from planc.language import library
from tests.plans import BODY, HEAD, cluster_of, written

TORI = {"tpu_v4": "4x4x8", "tpu_v5e": "16x16", "tpu_v5p": "4x4x8", "tpu_v6e": "16x16", "tpu_7x": "4x4x4"}


def bundled() -> dict[str, Cluster]:
    """A cluster of every node and torus of the bundled hardware files, of several nodes or slices."""
    shaped = {name: f"{name}({TORI[name]})" if name in TORI else name for name in library.machines()}
    return {name: cluster_of(f"{2 if name in TORI else 40} x {text}") for name, text in shaped.items()}


@pytest.mark.parametrize("name", sorted(library.machines()))
def test_every_machine_is_a_connected_graph_of_its_devices(name: str) -> None:
    cluster = bundled()[name]
    graph = graph_of(cluster)
    devices = [v for v, at in graph.nodes(data=True) if at["device"] >= 0]
    assert sorted(graph.nodes[v]["device"] for v in devices) == [*range(cluster.devices)]
    assert nx.is_strongly_connected(graph)
    assert all(at["bytes_per_s"] > 0 and at["latency_s"] >= 0 for _, _, at in graph.edges(data=True))


@pytest.mark.parametrize("name", sorted(library.machines().keys() - TORI.keys() - {"cpu_local"}))
def test_a_tower_carries_out_of_a_node_what_its_cards_do(name: str) -> None:
    """And the path between chips waits what the level says."""
    cluster = bundled()[name]
    graph, level = graph_of(cluster), cluster.levels[0]
    out = sum(at["bytes_per_s"] for u, v, at in graph.edges(data=True) if graph.nodes[u]["unit"] == 0 and "nic" in u)
    back = sum(at["bytes_per_s"] for _, v, at in graph.out_edges("node0.nic0", data=True) if v.startswith("node0."))
    ends = cluster.shape[0] if cluster.link.links else 1  # a card is at the node's switch, or at every chip
    assert back == pytest.approx(ends * level.bandwidth_bytes_per_s * level.efficiency)
    assert out - back == pytest.approx(level.bandwidth_bytes_per_s * level.efficiency)
    for other, latency_s in (("node0.chip1", cluster.link.latency_s), ("node1.chip0", level.latency_s)):
        assert nx.shortest_path_length(graph, "node0.chip0", other, "latency_s") == pytest.approx(latency_s)


@pytest.mark.parametrize("name", sorted(TORI))
def test_a_torus_has_a_link_a_dimension_and_chip(name: str) -> None:
    cluster = bundled()[name]
    graph = graph_of(cluster)
    ici = [(u, v) for u, v, at in graph.edges(data=True) if at["link"] == cluster.link.name]
    closed = sum(prod(cluster.shape) if w else prod(cluster.shape) // n * (n - 1)
                 for n, w in zip(cluster.shape, cluster.wrap, strict=True))  # fmt: skip
    assert len(ici) == 2 * cluster.count * closed


def test_a_leaf_sends_up_what_its_nodes_could() -> None:
    graph = graph_of(cluster_of("64 x h100_node"))
    assert graph["leaf0"]["spine0"]["bytes_per_s"] == pytest.approx(32 * 400e9 * 0.95)


def test_other_tools_read_what_is_written() -> None:
    links = machine_links(cluster_of("tpu_v5p(2x2x4)"))
    graph = graph_of(cluster_of("tpu_v5p(2x2x4)"))
    read = nx.parse_graphml(exported(links, ".graphml"))
    assert nx.utils.graphs_equal(nx.DiGraph(read.edges), nx.DiGraph(graph.edges))
    assert read.nodes["slice0.chip0_0_1"]["place"] == "0,0,1"
    data = json.loads(exported(links, ".json"))
    assert data.pop("format") == "planc.graph/1"
    again = nx.node_link_graph(data, edges="links")
    assert again["slice0.chip0_0_0"]["slice0.chip0_0_1"]["bytes_per_s"] == 81e9 and set(again.edges) == set(graph.edges)
    dot = StringIO(exported(links, ".dot")).readlines()
    assert sum(" -- " in line for line in dot) == graph.number_of_edges() / 2


def test_the_command_shows_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = written(tmp_path, HEAD + BODY)
    assert main(["graph", str(plan), "-o", str(tmp_path / "m.dot")]) == 0
    assert "h100_node: 64 devices; 8 switch, 64 chip, 1 leaf, 8 nic" in capsys.readouterr().out
    assert (tmp_path / "m.dot").read_text().startswith('graph "h100_node" {')
    assert main(["graph", str(plan), "--format", "json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["nodes"]) == 81
    with pytest.raises(SystemExit):
        main(["graph", str(plan), "-o", "m.png"])


def test_equal_parts_of_a_machine_of_a_million_devices_are_written_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (HEAD + BODY).replace("8 x h100_node", "131072 x h100_node").replace("fsdp 8", "fsdp 131072")
    path = written(tmp_path, text.replace("64 x 8192", "131072 x 8192"))
    outputs = (word for end in ("json", "dot", "svg") for word in ("-o", f"{tmp_path}/g.{end}"))
    assert main(["graph", str(path), *outputs]) == 0
    assert "1,048,576 devices; 131,072 switch, 1,048,576 chip, 4,096 leaf" in capsys.readouterr().out
    nodes = json.loads((tmp_path / "g.json").read_text())["nodes"]
    assert sum(n.get("copies", 1) for n in nodes if n["device"] >= 0) == 1_048_576 and len(nodes) == 12
    assert '"leaf0" [kind=leaf copies=4096];' in (tmp_path / "g.dot").read_text()
    assert "8 of 1,048,576 chips" in (tmp_path / "g.svg").read_text()


@pytest.mark.parametrize("name", sorted(library.machines()))
def test_parts_written_once_stand_for_those_written_one_by_one(name: str) -> None:
    cluster = bundled()[name]
    each, once = machine_links(cluster), merged_links(cluster)
    assert len(once.vertices) < len(each.vertices)
    shown = [line for line in graph_command.lines(once) if "written once" not in line]
    assert shown == [*graph_command.lines(each)]
