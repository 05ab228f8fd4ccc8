"""The graph that a hardware file writes: regular parts, points by name, and wires between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations, product
from math import ceil, prod

from planc.graph.links import Cable, LinkKind, MachineLinks, Vertex, added_share
from planc.ir.hardware import Cluster, Link, OwnGraph, Part

MOST_LINKS = 300_000
"""Links of a graph at most: 16,384 chips with their cards and rails have a fifth of that."""


def own_links(cluster: Cluster, graph: OwnGraph) -> MachineLinks:
    """The vertices and cables of `graph`, the graph of `cluster`; ranks in the order in which chips are written."""
    return GraphBuilder(cluster.name, graph).build()


class GraphBuilder:
    """Vertices by name, as the sentences of a graph add them."""

    def __init__(self, name: str, graph: OwnGraph) -> None:
        self.name, self.graph = name, graph
        self.links = {link.name: i for i, link in enumerate(graph.links)}
        self.vertices: list[Vertex] = []
        self.number: dict[str, int] = {}
        self.cables: list[Cable] = []
        self.devices = self.units = 0
        self._named_units: dict[str, int] = {}

    def build(self) -> MachineLinks:
        """All parts, points and wires."""
        for part in self.graph.parts:
            PARTS[part.kind](self, part)
        for points in self.graph.points:
            unit = self.named_unit(points.unit) if points.unit else -1
            for name in points.names:
                self.add(name, points.kind, unit if points.kind == "chip" or points.unit else -1)
        for wire in self.graph.wires:
            for one, other in product(wire.ends, wire.others):
                self.join(self.number[one], self.number[other], wire.link, wire.links, wire.share)
        kinds = tuple(map(link_kind, self.graph.links))
        return MachineLinks(name=self.name, vertices=(*self.vertices,), cables=(*self.cables,), kinds=kinds)

    def named_unit(self, name: str) -> int:
        """The number of the node or rack called `name`."""
        if name not in self._named_units:
            self._named_units[name] = self.new_unit()
        return self._named_units[name]

    def new_unit(self) -> int:
        """The number of another node or rack."""
        self.units += 1
        return self.units - 1

    def add(self, name: str, kind: str, unit: int = -1) -> int:
        """A vertex; a chip is the next rank."""
        device = -1
        if kind == "chip":
            device, self.devices = self.devices, self.devices + 1
        self.number[name] = len(self.vertices)
        self.vertices.append(Vertex(name, kind, device, unit))  # type: ignore[arg-type]
        return len(self.vertices) - 1

    def join(self, one: int, other: int, link: str, links: float = 1, share: float = 1.0) -> None:
        """Links between two vertices."""
        self.cables.append(Cable(one, other, self.links[link], links, share))

    def node(self, part: Part, name: str) -> list[int]:
        """The chips of a node on its switch."""
        unit = self.new_unit()
        switch = self.add(f"{name}.switch", "switch", unit)
        gain = self.graph.links[self.links[part.links["link"]]].in_network_reduction
        self.vertices[switch] = self.vertices[switch]._replace(reduction=added_share(gain, part.numbers["chips"]))
        chips = [self.add(f"{name}.chip{i}", "chip", unit) for i in range(part.numbers["chips"])]
        for chip in chips:
            self.join(chip, switch, part.links["link"])
        return chips

    def rack(self, part: Part) -> None:
        """Chips on one switch."""
        self.node(part, part.name)

    def rail(self, part: Part) -> None:
        """Nodes whose chips with the same number meet on a switch: a rail, or several where `leaf` nodes fill one."""
        n = part.numbers
        chips = [self.node(part, f"{part.name}.node{j}") for j in range(n["nodes"])]
        rails: list[int] = []
        for block in range(ceil(n["nodes"] / n["leaf"])):
            for i in range(n["chips"]):
                rails.append(self.add(f"{part.name}.rail{i}_{block}", "leaf"))
                for j in range(block * n["leaf"], min(n["nodes"], (block + 1) * n["leaf"])):
                    self.join(chips[j][i], rails[-1], part.links["out"])
        self.spines(part, rails)

    def fat_tree(self, part: Part) -> None:
        """Nodes with their cards on one leaf, leaves on every spine. Chips share cards in equal blocks."""
        n = part.numbers
        leaves = [self.add(f"{part.name}.leaf{i}", "leaf") for i in range(ceil(n["nodes"] / n["leaf"]))]
        for j in range(n["nodes"]):
            chips = self.node(part, f"{part.name}.node{j}")
            unit = self.vertices[chips[0]].unit
            cards = [self.add(f"{part.name}.node{j}.nic{k}", "nic", unit) for k in range(n["cards"])]
            for i, chip in enumerate(chips):
                self.join(chip, cards[i * len(cards) // len(chips)], part.links["out"])
            for card in cards:
                self.join(card, leaves[j // n["leaf"]], part.links["out"])
        self.spines(part, leaves)

    def spines(self, part: Part, leaves: list[int]) -> None:
        """Every leaf on every spine by `uplinks` links."""
        for s in range(part.numbers["spines"]):
            spine = self.add(f"{part.name}.spine{s}", "spine")
            for leaf in leaves:
                self.join(leaf, spine, part.links["up"], part.numbers["uplinks"])

    def dragonfly(self, part: Part) -> None:
        """Groups of switches, all of a group joined with each other; each two groups by one link, in turn."""
        n = part.numbers
        groups = []
        for g in range(n["groups"]):
            routers = [self.add(f"{part.name}.group{g}.switch{r}", "leaf") for r in range(n["switches"])]
            for r, router in enumerate(routers):
                for j in range(n["nodes"]):
                    for chip in self.node(part, f"{part.name}.group{g}.node{r * n['nodes'] + j}"):
                        self.join(chip, router, part.links["out"])
            for one, other in combinations(routers, 2):
                self.join(one, other, part.links["local"])
            groups.append(routers)
        for g, h in combinations(range(n["groups"]), 2):
            one, other = groups[g][(h - 1) % n["switches"]], groups[h][g % n["switches"]]
            self.join(one, other, part.links["up"], n["uplinks"])

    def torus(self, part: Part) -> None:
        """A switch for every chip, joined with the next along every dimension; `wrap = 1` closes them all."""
        at: dict[tuple[int, ...], int] = {}
        unit = self.new_unit()
        for place in product(*(range(n) for n in part.shape)):
            name = f"{part.name}." + "_".join(map(str, place))
            at[place] = self.add(f"{name}.switch", "switch", unit)
            self.join(self.add(f"{name}.chip", "chip", unit), at[place], part.links["link"], 2 * len(part.shape))
        for place, one in at.items():
            for d, n in enumerate(part.shape):
                after = (*place[:d], (place[d] + 1) % n, *place[d + 1 :])
                if place[d] + 1 < n or (part.numbers["wrap"] and n > 2):
                    self.join(one, at[after], part.links["link"])


PARTS: dict[str, Callable[[GraphBuilder, Part], None]] = {
    "rack": GraphBuilder.rack,
    "rail": GraphBuilder.rail,
    "fat_tree": GraphBuilder.fat_tree,
    "dragonfly": GraphBuilder.dragonfly,
    "torus": GraphBuilder.torus,
}


def links_of(part: Part) -> int:
    """Number of cables that a part will have, without making them."""
    n = part.numbers
    if part.kind == "rack":
        return n["chips"]
    if part.kind == "torus":
        return prod(part.shape) * (1 + len(part.shape))
    if part.kind == "dragonfly":
        switches = n["groups"] * n["switches"]
        return switches * (2 * n["nodes"] * n["chips"] + n["switches"]) + n["groups"] ** 2 // 2
    leaves = ceil(n["nodes"] / n["leaf"]) * (n["chips"] if part.kind == "rail" else 1)
    return n["nodes"] * (2 * n["chips"] + n["cards"]) + leaves * n["spines"]


def link_kind(link: Link) -> LinkKind:
    """The facts that all links of the name of `link` have in common."""
    return LinkKind(
        link.name, link.bandwidth_bytes_per_s / link.shared, link.latency_s / 2, link.back_bandwidth_bytes_per_s,
        link.efficiency, link.half_bytes, link.call_s, (*link.op_efficiency.items(),),
    )  # fmt: skip


def names_of(graph: OwnGraph) -> Iterator[str]:
    """The names of all vertices of `graph`, in order, those written twice too."""
    builder = GraphBuilder("", graph)
    for part in graph.parts:
        PARTS[part.kind](builder, part)
    yield from (v.name for v in builder.vertices)
    for points in graph.points:
        yield from points.names
