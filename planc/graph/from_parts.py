"""Builds the graph in a hardware file: regular networks (parts), single vertices (points) and links (wires)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations, product
from math import ceil, prod

from planc.graph.links import Cable, LinkKind, MachineLinks, Vertex, added_share
from planc.graph.symmetry import Address, Digit, Symmetry
from planc.ir.cache import cached_on
from planc.ir.garbage import gc_paused
from planc.ir.hardware import Cluster, GraphPart, Link, OwnGraph

INSIDE = (-1, -1)
"""The two digits of a chip in its node, where a vertex does not move with them."""
MOST_LINKS = 300_000
"""Links of a graph at most: 16,384 chips with their cards and rails have a fifth of that."""


def own_links(cluster: Cluster, graph: OwnGraph) -> MachineLinks:
    """Return the vertices and cables of the machine whose hardware file writes the links (`graph`). Ranks follow the
    order of the chips in the file."""
    return links_of_graph(cluster.name, graph)


@cached_on(lambda name, graph: (graph.cache, name))
def links_of_graph(name: str, graph: OwnGraph) -> MachineLinks:
    """Return the vertices and cables of `graph`, which a hardware file writes, for a machine called `name`."""
    with gc_paused():
        return GraphBuilder(name, graph).build()


class GraphBuilder:
    """Builds the graph of a hardware file: its parts (regular networks, such as a fat tree), its points (single
    vertices) and its wires (links between vertices)."""

    def __init__(self, name: str, graph: OwnGraph) -> None:
        self.name, self.graph = name, graph
        self.links = {link.name: i for i, link in enumerate(graph.links)}
        self.vertices: list[Vertex] = []
        self.number: dict[str, int] = {}
        self.cables: list[Cable] = []
        self.devices = 0
        self.units: list[str] = []
        self.digits: tuple[Digit, ...] = ()
        self.addresses: list[Address] = []
        """The address of each vertex, of a machine that is one regular part."""
        self._named_units: dict[str, int] = {}

    def build(self) -> MachineLinks:
        """Add all parts, points and wires of the hardware file's graph, and return the machine."""
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
        alone = len(self.graph.parts) == 1 and not self.graph.points and not self.graph.wires
        known = alone and self.digits and len(self.addresses) == len(self.vertices)
        symmetry = Symmetry(self.digits, self.addresses) if known else None
        return MachineLinks(
            name=self.name, vertices=(*self.vertices,), cables=(*self.cables,), kinds=kinds, units=(*self.units,),
            symmetry=symmetry,
        )  # fmt: skip

    def named_unit(self, name: str) -> int:
        """Return the index of the node or rack called `name`, after adding it if there is none."""
        if name not in self._named_units:
            self._named_units[name] = self.new_unit(name)
        return self._named_units[name]

    def new_unit(self, name: str) -> int:
        """Add a node or rack called `name`, and return its index."""
        self.units.append(name)
        return len(self.units) - 1

    def add(self, name: str, kind: str, unit: int = -1, address: Address | None = None) -> int:
        """Add a vertex called `name`, and return its index. A chip gets the next rank. `unit` is the index of its node
        or rack (-1: none); `address` is its position in the symmetry of the graph (planc.graph.symmetry)."""
        device, number = -1, len(self.vertices)
        if kind == "chip":
            device, self.devices = self.devices, self.devices + 1
        self.number[name] = number
        self.vertices.append(Vertex(name, kind, device, unit))  # type: ignore[arg-type]
        if address is not None:
            self.addresses.append(address)
        return number

    def join(self, one: int, other: int, link: str, links: float = 1, share: float = 1.0) -> None:
        """Add a cable between the vertices `one` and `other`: `links` parallel links of the type `link`, at the
        fraction `share` of their bandwidth."""
        self.cables.append(Cable(one, other, self.links[link], links, share))

    def node(self, part: GraphPart, name: str, *above: int, cards: int = 1) -> list[int]:
        """Add a node, its chips, and a switch that connects them; return the chips. `above` are the digits of the
        node's position in the network. `cards` is its number of network cards; each serves an equal block of the
        chips."""
        unit, count, link = self.new_unit(name), part.numbers["chips"], self.links[part.links["link"]]
        switch = self.add(f"{name}.switch", "switch", unit, ("switch", (*INSIDE, *above)))
        gain = self.graph.links[link].in_network_reduction
        if gain > 1:
            self.vertices[switch] = self.vertices[switch]._replace(reduction=added_share(gain, count))
        each = max(1, count // cards)
        chips = [
            self.add(f"{name}.chip{i}", "chip", unit, ("chip", (i % each, i // each, *above))) for i in range(count)
        ]
        self.cables += [Cable(chip, switch, link) for chip in chips]
        return chips

    def rack(self, part: GraphPart) -> None:
        """Add the rack `part`: chips on one switch."""
        self.digits = (Digit(part.numbers["chips"]), Digit(1))
        self.node(part, part.name)

    def rail(self, part: GraphPart) -> None:
        """Add nodes on rails: the chips with the same index in every node are connected with one switch. If there are
        more than `leaf` nodes, each `leaf` of them have rail switches of their own, which spines connect."""
        n = part.numbers
        self.digits = _digits(Digit(n["chips"]), Digit(1), n)
        chips = [self.node(part, f"{part.name}.node{j}", j % n["leaf"], j // n["leaf"]) for j in range(n["nodes"])]
        rails: list[int] = []
        for block in range(ceil(n["nodes"] / n["leaf"])):
            for i in range(n["chips"]):
                rails.append(self.add(f"{part.name}.rail{i}_{block}", "leaf", -1, ("rail", (i, -1, -1, block))))
                for j in range(block * n["leaf"], min(n["nodes"], (block + 1) * n["leaf"])):
                    self.join(chips[j][i], rails[-1], part.links["out"])
        self.spines(part, rails)

    def fat_tree(self, part: GraphPart) -> None:
        """Add nodes on a fat tree. The network cards of a node are on one leaf switch, and every leaf is on every
        spine. Each card serves an equal block of the node's chips."""
        n, count = part.numbers, part.numbers["cards"]
        if n["chips"] % count == 0:
            self.digits = _digits(Digit(n["chips"] // count), Digit(count), n)
        leaves = [
            self.add(f"{part.name}.leaf{i}", "leaf", -1, ("leaf", (*INSIDE, -1, i)))
            for i in range(ceil(n["nodes"] / n["leaf"]))
        ]
        out = self.links[part.links["out"]]
        for j in range(n["nodes"]):
            at = j % n["leaf"], j // n["leaf"]
            name = f"{part.name}.node{j}"
            chips = self.node(part, name, *at, cards=count)
            unit, leaf = len(self.units) - 1, leaves[at[1]]
            cards = [self.add(f"{name}.nic{k}", "nic", unit, ("nic", (-1, k, *at))) for k in range(count)]
            self.cables += [Cable(chip, cards[i * count // len(chips)], out) for i, chip in enumerate(chips)]
            self.cables += [Cable(card, leaf, out) for card in cards]
        self.spines(part, leaves)

    def spines(self, part: GraphPart, leaves: list[int]) -> None:
        """Add the spine switches of `part`, and connect every leaf of `leaves` with every spine by `uplinks` links."""
        for s in range(part.numbers["spines"]):
            spine = self.add(f"{part.name}.spine{s}", "spine", -1, (f"spine{s}", (*INSIDE, -1, -1)))
            for leaf in leaves:
                self.join(leaf, spine, part.links["up"], part.numbers["uplinks"])

    def dragonfly(self, part: GraphPart) -> None:
        """Add groups of switches. All switches of a group are connected with each other. Each pair of groups has one
        cable, whose ends are spread over the groups' switches in turn."""
        n = part.numbers
        self.digits = (
            Digit(n["chips"]), Digit(1), Digit(n["nodes"]), Digit(n["switches"], "within"), Digit(n["groups"], "within")
        )  # fmt: skip
        groups = []
        for g in range(n["groups"]):
            routers = [
                self.add(f"{part.name}.group{g}.switch{r}", "leaf", -1, ("router", (*INSIDE, -1, r, g)))
                for r in range(n["switches"])
            ]
            for r, router in enumerate(routers):
                for j in range(n["nodes"]):
                    for chip in self.node(part, f"{part.name}.group{g}.node{r * n['nodes'] + j}", j, r, g):
                        self.join(chip, router, part.links["out"])
            for one, other in combinations(routers, 2):
                self.join(one, other, part.links["local"])
            groups.append(routers)
        for g, h in combinations(range(n["groups"]), 2):
            one, other = groups[g][(h - 1) % n["switches"]], groups[h][g % n["switches"]]
            self.join(one, other, part.links["up"], n["uplinks"])

    def torus(self, part: GraphPart) -> None:
        """Add a torus: a switch for every chip, connected with the next switch along every dimension. With `wrap = 1`
        the dimensions are rings."""
        at: dict[tuple[int, ...], int] = {}
        unit = self.new_unit(part.name)
        self.digits = tuple(Digit(n, "round" if part.numbers["wrap"] else "line") for n in reversed(part.shape))
        for place in product(*(range(n) for n in part.shape)):
            name, digits = f"{part.name}." + "_".join(map(str, place)), place[::-1]
            at[place] = self.add(f"{name}.switch", "switch", unit, ("switch", digits))
            chip = self.add(f"{name}.chip", "chip", unit, ("chip", digits))
            # As many links as the switch has to its neighbours, so that the chip can use all of them at once.
            self.join(chip, at[place], part.links["link"], 2 * len(part.shape))
        for place, one in at.items():
            for d, n in enumerate(part.shape):
                after = (*place[:d], (place[d] + 1) % n, *place[d + 1 :])
                if place[d] + 1 < n or (part.numbers["wrap"] and n > 2):
                    self.join(one, at[after], part.links["link"])


def _digits(chip: Digit, card: Digit, n: dict[str, int]) -> tuple[Digit, ...]:
    """Return the digits of a rank: the chip among those of its card, the card in its node, the node on its leaf switch,
    the leaf. Return () if the last leaf has fewer nodes, because then the leaves are not equivalent."""
    return (chip, card, Digit(n["leaf"]), Digit(n["nodes"] // n["leaf"])) if n["nodes"] % n["leaf"] == 0 else ()


PARTS: dict[str, Callable[[GraphBuilder, GraphPart], None]] = {
    "rack": GraphBuilder.rack,
    "rail": GraphBuilder.rail,
    "fat_tree": GraphBuilder.fat_tree,
    "dragonfly": GraphBuilder.dragonfly,
    "torus": GraphBuilder.torus,
}


def links_of(part: GraphPart) -> int:
    """Return an upper bound of the number of cables of `part`, without building it."""
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
    """Return the link type that `link`, a declaration in a hardware file, defines: bandwidth, latency, efficiencies."""
    return LinkKind(
        link.name, link.bandwidth_bytes_per_s / link.shared, link.latency_s / 2, link.back_bandwidth_bytes_per_s,
        link.efficiency, link.half_bytes, link.call_s, (*link.op_efficiency.items(),),
    )  # fmt: skip


def names_of(graph: OwnGraph) -> Iterator[str]:
    """Yield the names of all vertices of `graph`, in file order; a duplicate name is yielded twice."""
    builder = GraphBuilder("", graph)
    for part in graph.parts:
        PARTS[part.kind](builder, part)
    yield from (v.name for v in builder.vertices)
    for points in graph.points:
        yield from points.names
