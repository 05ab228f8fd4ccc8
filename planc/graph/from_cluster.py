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
from planc.ir.hardware import Cluster, Level, Link


def machine_links(cluster: Cluster) -> MachineLinks:
    """Return the machine of `cluster` as a graph of vertices and cables (bundles of parallel links), after the changes
    of `--with`.

    The latencies of the links along a path add up to the latency in the hardware file. Raises ChangeError for a change
    that does not fit the machine.
    """
    own = cluster.own_graph
    links = own_links(cluster, own) if own is not None else _Builder(cluster).build()
    return changed(links, cluster.changes) if cluster.changes else links


class _Builder:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.vertices: list[Vertex] = []
        self.cables: list[Cable] = []
        self.kinds: dict[LinkKind, int] = {}

    def build(self) -> MachineLinks:
        cluster, torus = self.cluster, self.cluster.is_torus
        units = [self._slice(i) if torus else self._node(i) for i in range(cluster.count)]
        if cluster.count > 1:
            self._network(units)
        return MachineLinks(
            name=cluster.name, vertices=(*self.vertices,), cables=(*self.cables,), kinds=(*self.kinds,),
            shape=cluster.shape if torus else (), wrap=cluster.wrap if torus else (),
            units=tuple(f"{'slice' if torus else 'node'}{i}" for i in range(cluster.count)),
        )  # fmt: skip

    def _add(self, name: str, kind: VertexKind, device: int = -1, unit: int = -1, **more: object) -> int:
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
        switches = self._switches(0, len(units))
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
        self._upper(switches, len(units))

    def _upper(self, switches: list[int], units: int) -> None:
        """Connect the switches of each tier with the next tier. A switch has one uplink per rail for each host below
        it."""
        cluster, nodes = self.cluster, 1
        for i, level in enumerate(cluster.levels[1:], start=1):
            nodes *= cluster.levels[i - 1].width
            if len(switches) == 1:
                return
            above = self._switches(i, units)
            up = nodes * cluster.hosts_per_node
            below_s = cluster.levels[i - 1].latency_s
            kind = self._kind(_level_kind(level, (level.latency_s - below_s) / 2, level.rails))
            for k, switch in enumerate(switches):
                self._join(switch, above[k // level.width % len(above)], kind, up * level.rails)
            switches = above

    def _switches(self, number: int, units: int) -> list[int]:
        """Add the switches of tier `number`, counted from the innermost. `units` is the number of nodes or slices. The
        last tier is one switch."""
        levels = self.cluster.levels
        level, nodes = levels[number], prod(v.width for v in levels[: number + 1])
        count = 1 if number == len(levels) - 1 else ceil(units / nodes)
        kind: VertexKind = "spine" if number else "leaf"
        return [
            self._add(f"{level.name}{i}", kind, reduction=added_share(level.in_network_reduction, 0))
            for i in range(count)
        ]


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
