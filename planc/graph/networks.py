"""Converts a machine's graph to networkx, and to the file formats GraphML, DOT and JSON."""

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
    """Return the machine of `cluster` as a networkx graph, with an edge in each direction for every cable.

    A vertex has its `kind` (chip, die, switch, nic, leaf, spine), its rank (`device`, -1 for none), the index of its
    node or slice (`unit`) and, on a torus, its coordinates (`place`). An edge has the name of its links in the hardware
    file (`link`), their number (`count`), `latency_s`, and `bytes_per_s` of all together, efficiency included.

    >>> graph_of(h100_node)["node0.chip0"]["node0.switch"]["bytes_per_s"]  # 450 GB/s
    450000000000.0
    """
    return network(machine_links(cluster))


def network(links: MachineLinks) -> nx.DiGraph[str]:
    """Return `links` as a networkx graph. A cable becomes two edges, one in each direction; their `bytes_per_s` is the
    bandwidth of all links of the cable together."""
    import networkx as nx

    found: nx.DiGraph[str] = nx.DiGraph(name=printable(links.name))
    names = [printable(v.name) for v in links.vertices]
    for name, v in zip(names, links.vertices, strict=True):
        facts: dict[str, Any] = {"kind": v.kind, "device": v.device, "unit": v.unit}
        facts |= {"place": v.place} if v.place else {}
        facts |= {"copies": v.copies} if v.copies > 1 else {}
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
    """Return the graph of `links` as the text of a file with the extension `suffix`: `.graphml`, `.dot` or `.json`."""
    return {".graphml": _graphml, ".dot": _dot, ".json": _json}[suffix](links)


def _json(links: MachineLinks) -> str:
    """Return the graph as JSON, a line for each vertex and edge: with `indent` the library's slow encoder writes it."""
    fields = to_json(links)
    rows = {name: ",\n  ".join(map(json.dumps, fields.pop(name))) for name in ("nodes", "links")}
    lines = [f" {json.dumps(name)}: {json.dumps(value)}" for name, value in fields.items()]
    lines += [f' "{name}": [\n  {text}\n ]' if text else f' "{name}": []' for name, text in rows.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def to_json(links: MachineLinks) -> dict[str, Any]:
    """Return the graph of `links` in networkx's node-link format."""
    import networkx as nx

    data = nx.node_link_data(network(links), edges="links")
    for node in data["nodes"]:
        if "place" in node:
            node["place"] = list(node["place"])
    return {"format": FORMAT, **data}


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
    rows = [
        f"  {name} [kind={v.kind}{f' copies={v.copies}' if v.copies > 1 else ''}];"
        for name, v in zip(names, links.vertices, strict=True)
    ]
    for cable in links.cables:
        one, other = (names[i] for i in (cable.source, cable.target))
        there, back = (f"{rate / 1e9:.4g}" for rate in links.bytes_per_s(cable))
        said = there if there == back else f"{there} / {back}"
        label = dot_string(f"{links.kinds[cable.kind].name} {said} GB/s")
        rows.append(f"  {one} -- {other} [label={label}];")
    return "\n".join([f"graph {dot_string(links.name)} {{", *rows, "}"]) + "\n"
