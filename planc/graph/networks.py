"""A machine's graph as networkx has it, and written for other tools: GraphML, DOT, JSON."""

from __future__ import annotations

import json
from io import BytesIO
from typing import TYPE_CHECKING, Any

from planc.diag.quoting import dot_string, printable
from planc.graph.from_cluster import machine_links
from planc.graph.links import MachineLinks
from planc.ir.hardware import Cluster

if TYPE_CHECKING:
    import networkx as nx

FORMAT = "planc.graph/1"
SUFFIXES = (".graphml", ".dot", ".json")


def graph_of(cluster: Cluster) -> nx.DiGraph[str]:
    """The machine of a `cluster` as a networkx graph, an edge each way for every link.

    Vertices have a `kind` (chip, die, switch, nic, leaf, spine), their `device` (the rank there, else -1), the
    `unit` (node or slice) that they are in and, on a torus, their `place`. Edges have the `link` that a hardware
    file names, `bytes_per_s` with its efficiency, `latency_s`, and the `count` of parallel links.

    >>> graph_of(h100_node)["node0.chip0"]["node0.switch"]["bytes_per_s"]  # 450 GB/s
    450000000000.0
    """
    return network(machine_links(cluster))


def network(links: MachineLinks) -> nx.DiGraph[str]:
    """Return `links` as a networkx graph. A cable becomes an edge each way; `bytes_per_s` is that of all links of the
    cable."""
    import networkx as nx

    found: nx.DiGraph[str] = nx.DiGraph(name=printable(links.name))
    names = [printable(v.name) for v in links.vertices]
    for name, v in zip(names, links.vertices, strict=True):
        facts: dict[str, Any] = {"kind": v.kind, "device": v.device, "unit": v.unit}
        facts |= {"place": v.place} if v.place else {}
        found.add_node(name, **facts | ({"reduction": v.reduction} if v.reduction else {}))
    for cable in links.cables:
        ends = [names[i] for i in (cable.source, cable.target)]
        kind = links.kinds[cable.kind]
        for (one, other), rate in zip((ends, ends[::-1]), links.bytes_per_s(cable), strict=True):
            found.add_edge(
                one, other, link=printable(kind.name), bytes_per_s=rate, latency_s=kind.latency_s, count=cable.links,
                efficiency=kind.efficiency,
            )  # fmt: skip
    return found


def exported(links: MachineLinks, suffix: str) -> str:
    """Return the graph of `links` as text in the format of files whose names end in `suffix`, one of `SUFFIXES`."""
    return {".graphml": _graphml, ".dot": _dot, ".json": _json}[suffix](links)


def _json(links: MachineLinks) -> str:
    return json.dumps(to_json(links), indent=1) + "\n"


def to_json(links: MachineLinks) -> dict[str, Any]:
    """Return the graph of `links` as networkx's node-link data."""
    import networkx as nx

    data = nx.node_link_data(network(links), edges="links")
    return {"format": FORMAT, **json.loads(json.dumps(data))}


def _graphml(links: MachineLinks) -> str:
    import networkx as nx

    found = network(links)
    for _, facts in found.nodes(data=True):
        if "place" in facts:
            facts["place"] = ",".join(map(str, facts["place"]))
    out = BytesIO()
    nx.write_graphml(found, out)
    return out.getvalue().decode()


def _dot(links: MachineLinks) -> str:
    """Return the graph of `links` as Graphviz text: one edge for each cable, labelled with its GB/s each way."""
    names = [dot_string(v.name) for v in links.vertices]
    rows = [f"  {name} [kind={v.kind}];" for name, v in zip(names, links.vertices, strict=True)]
    for cable in links.cables:
        one, other = (names[i] for i in (cable.source, cable.target))
        there, back = (f"{rate / 1e9:.4g}" for rate in links.bytes_per_s(cable))
        said = there if there == back else f"{there} / {back}"
        label = dot_string(f"{links.kinds[cable.kind].name} {said} GB/s")
        rows.append(f"  {one} -- {other} [label={label}];")
    return "\n".join([f"graph {dot_string(links.name)} {{", *rows, "}"]) + "\n"
