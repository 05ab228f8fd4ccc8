"""Builds the graph of a cluster whose hardware file describes a tree of switches or a torus.

In a tree, the chips of a node are on the node's switch or joined with each other, its network cards on a leaf switch,
and leaves on a spine. The uplink of a switch has the bandwidth of all nodes below it, divided by the oversubscription.
A torus has a link from each chip to the next along every dimension; the network cards of the hosts connect its slices.
"""

from __future__ import annotations

from itertools import combinations, product
from math import ceil, prod

from planc.graph.changes import changed
from planc.graph.from_parts import own_links
from planc.graph.links import Cable, LinkKind, MachineLinks, Vertex, VertexKind, added_share
from planc.graph.symmetry import Address, Digit, Symmetry
from planc.ir.cache import cached_on
from planc.ir.garbage import gc_paused
from planc.ir.hardware import Cluster, Level, Link


def machine_links(cluster: Cluster) -> MachineLinks:
    """Return the machine of `cluster` as a graph of vertices and cables (bundles of parallel links), after the changes
    of `--with`.

    The latencies of the links along a path add up to the latency in the hardware file. Raises ChangeError for a change
    that does not fit the machine.
    """
    own = cluster.own_graph
    links = own_links(cluster, own) if own is not None else unchanged_links(cluster)
    return changed(links, cluster.changes) if cluster.changes else links


@cached_on(lambda cluster: (cluster.cache, ()))
def unchanged_links(cluster: Cluster) -> MachineLinks:
    """Return the machine of `cluster`, a tree of switches or a torus, as a graph without the changes of `--with`."""
    with gc_paused():
        return _Builder(cluster).build()


def merged_links(cluster: Cluster) -> MachineLinks:
    """Return the machine of `cluster`, a tree of switches or a torus, with one node or slice and one switch of each
    tier. Each vertex has the number of equal ones that it stands for; a last switch with fewer nodes counts as equal.
    """
    return _Builder(cluster, merged=True).build()


class _Builder:
    def __init__(self, cluster: Cluster, *, merged: bool = False) -> None:
        self.cluster, self.merged = cluster, merged
        self.units = 1 if merged else cluster.count
        """Nodes or slices that are written."""
        self.vertices: list[Vertex] = []
        self.cables: list[Cable] = []
        self.kinds: dict[LinkKind, int] = {}
        self.tiers: list[list[int]] = []
        """The switches of each tier of the network, the innermost first."""

    def build(self) -> MachineLinks:
        cluster, torus = self.cluster, self.cluster.is_torus
        units = [self._slice(i) if torus else self._node(i) for i in range(self.units)]
        if cluster.count > 1:
            self._network(units)
        return MachineLinks(
            name=cluster.name, vertices=(*self.vertices,), cables=(*self.cables,), kinds=(*self.kinds,),
            shape=cluster.shape if torus else (), wrap=cluster.wrap if torus else (),
            units=tuple(f"{'slice' if torus else 'node'}{i}" for i in range(self.units)),
            symmetry=None if self.merged else self._symmetry(),
        )  # fmt: skip

    def _symmetry(self) -> Symmetry | None:
        """Return the digits of a rank: the chip in its node, and the node's place below each tier of switches. None for
        a torus, for chips that are several devices, and where the last switch of a tier has fewer below it."""
        cluster = self.cluster
        if cluster.is_torus or cluster.chip.devices > 1 or (cluster.link.links and cluster.count == 1):
            return None
        sizes, below = list[int](), cluster.count
        for i, level in enumerate(cluster.levels if cluster.count > 1 else ()):
            above = len(self.tiers[i]) if i < len(self.tiers) else 1
            sizes.append(below if above == 1 else level.width)
            if below != sizes[-1] * above:
                return None
            below = above
        digits = (Digit(cluster.shape[0], "none" if cluster.link.links else "any"), *map(Digit, sizes))
        strides = [prod(sizes[:i]) for i in range(len(sizes))]
        none = (-1,) * len(sizes)

        def place(unit: int) -> tuple[int, ...]:
            return tuple(unit // stride % size for stride, size in zip(strides, sizes, strict=True))

        places = [place(unit) for unit in range(cluster.count)]
        addresses: list[Address] = []
        for vertex in self.vertices:
            name, at = vertex.name.rpartition(".")[2], places[vertex.unit] if vertex.unit >= 0 else none
            chip = vertex.device % cluster.shape[0] if vertex.kind == "chip" else -1
            addresses.append(("chip" if chip >= 0 else name, (chip, *at)))
        for i, tier in enumerate(self.tiers):
            for number, switch in enumerate(tier):
                at = (*none[: i + 1], *place(number * prod(sizes[: i + 1]))[i + 1 :])
                addresses[switch] = (f"tier{i}", (-1, *at))
        return Symmetry(digits, addresses)

    def _add(self, name: str, kind: VertexKind, device: int = -1, unit: int = -1, **more: object) -> int:
        if self.merged and unit >= 0:
            more["copies"] = self.cluster.count
        self.vertices.append(Vertex(name, kind, device, unit, **more))  # type: ignore[arg-type]
        return len(self.vertices) - 1

    def _kind(self, kind: LinkKind) -> int:
        return self.kinds.setdefault(kind, len(self.kinds))

    def _join(self, source: int, target: int, kind: int, count: float = 1) -> None:
        self.cables.append(Cable(source, target, kind, count))

    def _node(self, unit: int) -> list[int]:
        """Add the chips of node `unit`, each connected with the node's switch, which is returned; or, where its links
        end at other chips, with each of these: then the chips are."""
        cluster, link = self.cluster, self.cluster.link
        chips = cluster.shape[0]
        if link.links:
            found = [self._chip(f"node{unit}.chip{i}", unit * chips + i, unit) for i in range(chips)]
            kind = self._kind(_link_kind(link, link.latency_s, 1 / cluster.links_of_chip))
            for one, other in combinations(found, 2):
                self._join(one, other, kind)
            return found
        switch = self._add(
            f"node{unit}.switch", "switch", unit=unit, reduction=added_share(link.in_network_reduction, chips)
        )
        own: int | None = None
        for i in range(chips):
            chip = self._chip(f"node{unit}.chip{i}", unit * chips + i, unit)
            if own is None:  # Two such links are between two chips: each has half of the latency.
                own = self._kind(_link_kind(link, link.latency_s / 2, 1 / link.shared))
            self._join(chip, switch, own)
        return [switch]

    def _chip(self, name: str, number: int, unit: int, place: tuple[int, ...] = ()) -> int:
        """Add a chip and return its vertex. If the framework sees its dies as devices, add them too. `number` is the
        chip's index in the machine, `place` its torus coordinates."""
        cluster, dies = self.cluster, self.cluster.chip.devices
        chip = self._add(name, "chip", number if dies == 1 else -1, unit, place=place)
        for j in range(dies if dies > 1 else 0):
            die = self._add(f"{name}.die{j}", "die", number * dies + j, unit)
            self._join(die, chip, self._kind(LinkKind(cluster.chip.name, cluster.chip.die_bandwidth_bytes_per_s, 0.0)))
        return chip

    def _slice(self, unit: int) -> list[int]:
        """Add the chips of torus slice `unit`, each connected with its neighbours along every dimension. Return the
        chips."""
        cluster = self.cluster
        at: dict[tuple[int, ...], int] = {}
        for number, place in enumerate(product(*(range(n) for n in cluster.shape))):
            name = f"slice{unit}.chip" + "_".join(map(str, place))
            at[place] = self._chip(name, unit * prod(cluster.shape) + number, unit, place)
        kind = self._kind(_link_kind(cluster.link, cluster.link.latency_s))
        for place, chip in at.items():
            for d, length in enumerate(cluster.shape):
                after = (*place[:d], (place[d] + 1) % length, *place[d + 1 :])
                if length > 1 and (place[d] + 1 < length or (cluster.wrap[d] and length > 2)):
                    # Both links of a ring of two are between the same chips.
                    self._join(chip, at[after], kind, 2 if cluster.wrap[d] and length == 2 else 1)
        return [*at.values()]

    def _network(self, units: list[list[int]]) -> None:
        """Add the network cards of every node or slice, and the switches of all tiers. `units` has, for each node or
        slice, the vertices that its cards are connected with."""
        cluster, level = self.cluster, self.cluster.levels[0]
        switches = self._switches(0)
        inside_s = 0.0 if cluster.is_torus else cluster.link.latency_s / 2
        near = _level_kind(level, inside_s if cluster.link.links else 0.0, level.rails)  # a switch has it already
        far = _level_kind(level, level.latency_s / 2 - inside_s, level.rails)
        near_kind, far_kind = self._kind(near), self._kind(far)
        for unit, ends in enumerate(units):
            leaf = switches[unit // level.width % len(switches)]
            hosts = cluster.hosts_per_node
            for i in range(hosts):
                card = self._add(f"{cluster.unit}{unit}.nic{i}", "nic", unit=unit)
                mine = ends[i * len(ends) // hosts : (i + 1) * len(ends) // hosts]
                for end in mine:
                    self._join(end, card, near_kind, level.rails)
                self._join(card, leaf, far_kind, level.rails)
        self._upper(switches)

    def _upper(self, switches: list[int]) -> None:
        """Connect the switches of each tier with the next tier. A switch has one uplink per rail for each host below
        it."""
        cluster, nodes = self.cluster, 1
        for i, level in enumerate(cluster.levels[1:], start=1):
            nodes *= cluster.levels[i - 1].width
            if self._count(i - 1) == 1:
                return
            above = self._switches(i)
            up = nodes * cluster.hosts_per_node
            below_s = cluster.levels[i - 1].latency_s
            kind = self._kind(_level_kind(level, (level.latency_s - below_s) / 2, level.rails))
            for k, switch in enumerate(switches):
                self._join(switch, above[k // level.width % len(above)], kind, up * level.rails)
            switches = above

    def _count(self, number: int) -> int:
        """Return the number of switches of tier `number`, counted from the innermost. The last tier is one switch."""
        levels = self.cluster.levels
        return (
            1 if number == len(levels) - 1 else ceil(self.cluster.count / prod(v.width for v in levels[: number + 1]))
        )

    def _switches(self, number: int) -> list[int]:
        """Add the switches of tier `number`, or one that stands for all."""
        level, count = self.cluster.levels[number], self._count(number)
        kind: VertexKind = "spine" if number else "leaf"
        reduction, copies = added_share(level.in_network_reduction, 0), count if self.merged else 1
        written = range(count // copies)
        self.tiers.append([self._add(f"{level.name}{i}", kind, reduction=reduction, copies=copies) for i in written])
        return self.tiers[-1]


def _link_kind(link: Link, latency_s: float, share: float = 1.0) -> LinkKind:
    return LinkKind(
        link.name, link.bandwidth_bytes_per_s * share, latency_s, efficiency=link.efficiency,
        half_bytes=link.half_bytes, call_s=link.call_s, op_efficiency=(*link.op_efficiency.items(),),
    )  # fmt: skip


def _level_kind(level: Level, latency_s: float, rails: int) -> LinkKind:
    """Return the link (bandwidth, latency) of one of the `rails` parallel links that connect a host to the network tier
    `level`."""
    return LinkKind(
        level.name, level.bandwidth_bytes_per_s / level.oversubscription / rails, latency_s,
        efficiency=level.efficiency, half_bytes=level.half_bytes, call_s=level.call_s,
        op_efficiency=(*level.op_efficiency.items(),),
    )  # fmt: skip
