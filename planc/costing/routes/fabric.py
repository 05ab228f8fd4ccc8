"""Flows over the switches of a machine: each on its shortest paths, divided equally among them (ECMP).

Chips do not forward: a flow between two of them leaves through a port, crosses switches and cards, and arrives at a
port. Two exact reductions shrink a large network before any path search. Switches with the same neighbours and no chips
(spines of a Clos) are merged into one. A vertex with a single neighbour has a unique path, so it is removed, and its
flows start at its neighbour. Nothing then remains of a tree of switches. Other networks leave a core, in which flows
are routed target by target. Equal shares at every hop: RFC 2992, https://www.rfc-editor.org/rfc/rfc2992.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from functools import cached_property
from itertools import pairwise, permutations, product

from planc.costing.routes.core import Amounts, Arc, Bundle, Grid, SwitchCore, core_of
from planc.graph.links import MachineLinks

Flow = tuple[int, int, float]
"""(source vertex, target vertex, bytes)."""


class NoPathError(ValueError):
    """Raised if no links connect two chips of a group."""


class Fabric:
    """A machine's network of switches and network cards between its chips. An arc is a cable in one direction; a bundle
    is all parallel arcs between two vertices of the reduced network."""

    def __init__(self, links: MachineLinks) -> None:
        self.links = links
        self.direct: dict[tuple[int, int], Arc] = {}
        self.ports: dict[int, list[tuple[int, Arc, Arc]]] = defaultdict(list)
        """For each chip the switches or cards it is connected to, with the arcs in both directions."""
        self._next: dict[int, dict[int, Bundle]] = defaultdict(dict)
        self._add_cables()
        self._neighbours = {v: [*near] for v, near in self._next.items()}
        self._parent: dict[int, int] = {}
        self._position: dict[int, int] = {}
        """Removed vertices with a unique path, in order of removal."""
        self._path_of: dict[tuple[int, int], Bundle] = {}
        self._bundles: dict[Arc, Bundle] = {}
        """Bundles of several arcs, by their first arc."""
        self._reduce()
        self._known: dict[int, list[int]] = {}
        self._rate()

    def _rate(self) -> None:
        links = self.links
        each = [(kind.there_bytes_per_s(), kind.return_bytes_per_s()) for kind in links.kinds]
        self.rates = [rate * c.links * c.share for c in links.cables for rate in each[c.kind]]
        """Bytes per second of each arc."""
        self.paces = self._paced()
        """Bandwidth (bytes/s) of each bundle by its first arc, limited by its slowest link."""

    def rated(self, links: MachineLinks) -> Fabric:
        """Return the fabric of `links`, which joins the same vertices by the same cables, at other bandwidths."""
        kept = self._single_ports, self._core
        found = copy(self)
        for name in ("_whole", "uneven"):
            found.__dict__.pop(name, None)
        assert (found._single_ports, found._core) == kept
        found.links = links
        found._rate()
        return found

    def _add_cables(self) -> None:
        vertices, ports, after = self.links.vertices, self.ports, self._next
        ends = [v.device >= 0 for v in vertices]
        for number, (source, target, _, links, _) in enumerate(self.links.cables):
            arc = 2 * number
            if ends[source] and ends[target]:
                if not vertices[source].place:
                    self.direct[source, target], self.direct[target, source] = arc, arc + 1
            elif ends[source]:
                ports[source].append((target, arc, arc + 1))
            elif ends[target]:
                ports[target].append((source, arc + 1, arc))
            elif not (vertices[source].place and vertices[target].place):
                for one, other, way in ((source, target, arc), (target, source, arc + 1)):
                    near = after[one]
                    if (bundle := near.get(other)) is None:
                        near[other] = Bundle([way], links)
                    else:
                        bundle.arcs.append(way)
                        bundle.links += links

    def _paced(self) -> list[float]:
        found = [*self.rates]
        for bundle in [*self._path_of.values(), *(b for near in self._next.values() for b in near.values())]:
            if len(bundle.arcs) > 1:
                self._bundles[bundle.arcs[0]] = bundle
                found[bundle.arcs[0]] = min(self.rates[arc] * bundle.links / self._links_of(arc) for arc in bundle.arcs)
        return found

    def _links_of(self, arc: Arc) -> float:
        return self.links.cables[arc // 2].links

    @cached_property
    def _first(self) -> dict[Arc, Arc]:
        """The first arc of the bundle, which identifies it, for each arc that has parallel arcs."""
        return {arc: start for start, bundle in self._bundles.items() for arc in bundle.arcs}

    def first_of(self, arc: Arc) -> Arc:
        """Return the first arc of the bundle that contains `arc`."""
        return self._first.get(arc, arc)

    def part_of(self, arc: Arc) -> float:
        """Return the share of the bytes on the bundle of `arc` that `arc` itself carries."""
        bundle = self._bundles.get(self.first_of(arc))
        return self._links_of(arc) / bundle.links if bundle else 1.0

    @cached_property
    def uneven(self) -> list[Arc]:
        """The first arc of each bundle, and each arc of a port, in which some link is degraded."""
        arcs = [2 * i + way for i, c in enumerate(self.links.cables) if c.share != 1.0 for way in (0, 1)]
        return [*dict.fromkeys(map(self.first_of, arcs))]

    # Reduction.

    def _reduce(self) -> None:
        held = {u for ports in self.ports.values() for u, _, _ in ports}
        changed = True
        while changed:
            changed = self._merge_twins(held) | self._strip(held)

    def _merge_twins(self, held: set[int]) -> bool:
        """Merge switches without chips that have equal neighbours and links. Return True if there were any."""
        alike: dict[tuple[tuple[int, float], ...], list[int]] = defaultdict(list)
        for v, near in self._next.items():
            if v not in held and near:
                alike[tuple(sorted((u, b.links) for u, b in near.items()))].append(v)
        found = False
        for twins in alike.values():
            for other in twins[1:]:
                found = True
                first = twins[0]
                for u, bundle in self._next.pop(other).items():
                    for one, of in ((self._next[first][u], bundle), (self._next[u][first], self._next[u].pop(other))):
                        one.arcs += of.arcs
                        one.links += of.links
        return found

    def _strip(self, held: set[int]) -> bool:
        """Remove vertices with a single neighbour, since their path is unique. Return True if there were any."""
        bare = [v for v, near in self._next.items() if len(near) == 1]
        found = False
        while bare:
            v = bare.pop()
            if len(self._next[v]) != 1:
                continue
            (above,) = self._next[v]
            self._parent[v] = above
            self._position[v] = len(self._position)
            self._up(v, above)
            found = True
            if v in held:
                held.add(above)
            if len(self._next[above]) == 1:
                bare.append(above)
        return found

    def _up(self, v: int, above: int) -> None:
        self._path_of[v, above], self._path_of[above, v] = self._next[v].pop(above), self._next[above].pop(v)

    # Flows.

    def loads(self, flows: Iterable[Flow], exchanges: Iterable[tuple[Sequence[int], float]] = ()) -> dict[Arc, float]:
        """Return the bytes on each arc when all `flows` and `exchanges` (all-to-alls) run at once.

        An exchange is a list of chips and the bytes that each of them sends to each other one.
        """
        return self.divided(self.totals(flows, exchanges))

    def divided(self, totals: Mapping[Arc, float]) -> dict[Arc, float]:
        """Return the bytes on each arc, from `totals`, the bytes on each bundle by its first arc."""
        loads: dict[Arc, float] = {}
        for first, total in totals.items():
            bundle = self._bundles.get(first)
            for arc in bundle.arcs if bundle else (first,):
                loads[arc] = total * self._links_of(arc) / bundle.links if bundle else total
        return loads

    def totals(self, flows: Iterable[Flow], exchanges: Iterable[tuple[Sequence[int], float]] = ()) -> dict[Arc, float]:
        """Return the bytes on each bundle, by its first arc, when all `flows` and `exchanges` run at once."""
        loads: dict[Arc, float] = defaultdict(float)
        between: Amounts = defaultdict(float)
        core: Amounts = defaultdict(float)
        only = self._single_ports
        for source, target, amount in flows:
            if amount and (mine := only.get(source)) and (theirs := only.get(target)) and mine[0] != theirs[0]:
                loads[mine[2]] += amount
                loads[theirs[3]] += amount
                if mine[1] != theirs[1]:
                    between[mine[1], theirs[1]] += amount
            else:
                self._send(source, target, amount, loads, between)
        for members, amount in exchanges:
            self._exchange(members, amount, loads, between, core)
        self._climb(between, loads, core)
        self._core.push(core, loads)
        return loads

    def _send(self, source: int, target: int, amount: float, loads: dict[Arc, float], between: Amounts) -> None:
        """Add one flow to `loads` on the links of both chips, and to the bytes `between` their switches."""
        if source == target or not amount:
            return
        if (arc := self.direct.get((source, target))) is not None:
            loads[arc] += amount
            return
        chosen = self.port_pairs(source, target)
        if not chosen:
            paths = self.relays(source, target)
            for path in paths:
                for one, other in pairwise((source, *path, target)):
                    self._send(one, other, amount / len(paths), loads, between)
            return
        each = amount / len(chosen)
        for (u, out, _), (v, _, into) in chosen:
            loads[out] += each
            loads[into] += each
            if u != v:
                between[u, v] += each

    @cached_property
    def _whole(self) -> list[float]:
        """The undegraded bandwidth (bytes/s) of each arc: software selects ports by it, unaware of degraded links."""
        return [rate / self.links.cables[arc // 2].share for arc, rate in enumerate(self.rates)]

    def port_pairs(self, source: int, target: int) -> list[tuple[tuple[int, Arc, Arc], tuple[int, Arc, Arc]]]:
        """Return the pairs of ports of chip `source` and chip `target` that the shortest paths (in hops) use.

        If several paths are equally short, software selects those with the fastest ports: NVLink before PCIe.
        """
        mine, theirs, component = self.ports[source], self.ports[target], self._components
        pairs = [(p, q) for p in mine for q in theirs if component[p[0]] == component[q[0]]]
        if len(pairs) <= 1:
            return pairs
        hops = [self.hops(p[0], q[0]) for p, q in pairs]
        least = min(hops)
        near = [pair for pair, far in zip(pairs, hops, strict=True) if far == least]
        if len(near) == 1:
            return near
        rates = [min(self._whole[out], self._whole[into]) for (_, out, _), (_, _, into) in near]
        return [pair for pair, rate in zip(near, rates, strict=True) if rate >= max(rates) * (1 - 1e-9)]

    def relays(self, source: int, target: int) -> list[tuple[int, ...]]:
        """Return the chips that forward data from `source` to `target` if no network of switches connects these two.
        Each entry is one path, and data is divided over the paths.

        On rails without spines a GPU reaches other rails through the peer in its node that is on them: NCCL's PXN. A
        target without its own card is reached through a peer in its node.
        """
        mine, theirs = (self._peers(v) for v in (source, target))
        found: list[tuple[int, ...]] = [(v,) for v in mine if self.joined(v, target)]
        found = found or [(v,) for v in theirs if self.joined(source, v)]
        if not found:
            found = [pair for pair in zip(mine, theirs, strict=False) if self.joined(*pair)]
        if not found:
            ends = " and ".join(self.links.vertices[v].name for v in (source, target))
            raise NoPathError(f"no network joins {ends}")
        return found

    def _peers(self, chip: int) -> list[int]:
        """Return the other chips in the node or slice of `chip` that a link or a network connects with it."""
        unit = self.links.vertices[chip].unit
        return [v for v in self._chips_of[unit] if self.joined(chip, v)] if unit >= 0 else []

    def joined(self, source: int, target: int) -> bool:
        """True if a link or a network of switches connects the chips `source` and `target`."""
        if (source, target) in self.direct:
            return True
        mine, theirs = ({self._components[p[0]] for p in self.ports[v]} for v in (source, target))
        return source != target and not mine.isdisjoint(theirs)

    @cached_property
    def _chips_of(self) -> dict[int, list[int]]:
        """The chips of each unit (node or slice), by its number."""
        found: dict[int, list[int]] = defaultdict(list)
        for v in self.links.devices:
            found[self.links.vertices[v].unit].append(v)
        return found

    def _climb(self, amounts: Amounts, loads: dict[Arc, float], core: Amounts) -> None:
        """Add flows, by (source, target): to `loads` along the unique paths from both ends to where these meet, or else
        to `core` between the two switches of the core at which they end. Flows that meet on their way are one."""
        ways, pending = self._upward, defaultdict[int, Amounts](lambda: defaultdict(float))
        root = (-1, -1, -1, 0)

        def add(u: int, v: int, amount: float) -> None:
            height = max(ways.get(u, root)[3], ways.get(v, root)[3])
            (pending[height] if height else core)[u, v] += amount

        for (u, v), amount in amounts.items():
            if u != v:
                add(u, v, amount)
        for height in range(max(pending, default=0), 0, -1):
            for (u, v), amount in pending.pop(height, {}).items():
                above_u, up, _, height_u = ways.get(u, root)
                above_v, _, down, height_v = ways.get(v, root)
                if height_u == height:
                    u = above_u
                    loads[up] += amount
                if height_v == height:
                    v = above_v
                    loads[down] += amount
                if u != v:
                    add(u, v, amount)

    @cached_property
    def _upward(self) -> dict[int, tuple[int, Arc, Arc, int]]:
        """For each vertex with a unique path upwards: the vertex above, the first arcs there and back, and its number
        of hops to the core."""
        found: dict[int, tuple[int, Arc, Arc, int]] = {}
        for v, above in reversed(self._parent.items()):  # removed before the vertex above it
            there, back = self._path_of[v, above], self._path_of[above, v]
            found[v] = above, there.arcs[0], back.arcs[0], found[above][3] + 1 if above in found else 1
        return found

    def _chains(self, u: int, v: int) -> tuple[list[int], list[int]]:
        """Return the unique paths of `u` and of `v` upwards, to where the two paths meet, or else to the core."""
        up, down = self._chain(u), self._chain(v)
        while len(up) > 1 and len(down) > 1 and up[-2] == down[-2]:
            up, down = up[:-1], down[:-1]
        return up, down

    def _chain(self, v: int) -> list[int]:
        if (chain := self._known.get(v)) is None:
            chain = self._known[v] = [v]
            while (above := self._parent.get(chain[-1])) is not None:
                chain.append(above)
        return chain

    def _exchange(
        self, members: Sequence[int], amount: float, loads: dict[Arc, float], between: Amounts, core: Amounts
    ) -> None:
        """Add an all-to-all among `members`, each pair with `amount` bytes. Inside a unit it is added pair by pair;
        between units it is computed from the number of members on each side of a link."""
        if amount < 0 or (not self.direct and all(len(self.ports[v]) == 1 for v in members)):
            self._counted(members, amount, loads, core)
            return
        units: dict[int, list[int]] = defaultdict(list)
        for v in members:
            units[self.links.vertices[v].unit].append(v)
        for inside in units.values():
            for a in inside:
                for b in inside:
                    self._send(a, b, amount, loads, between)
        if len(units) == 1:
            return
        networks: dict[int, list[int]] = defaultdict(list)
        for v in members:
            networks[self._components[self._outer(v)[0][0]]].append(v)
        if len(networks) > 1:
            self._over_rails(units, networks, amount, loads, between, core)
            return
        self._counted(members, amount, loads, core)
        for inside in units.values():
            self._counted(inside, -amount, loads, core)

    def _over_rails(
        self,
        units: Mapping[int, Sequence[int]],
        networks: Mapping[int, Sequence[int]],
        amount: float,
        loads: dict[Arc, float],
        between: Amounts,
        core: Amounts,
    ) -> None:
        """Add an all-to-all among members that are on several networks (rails). In each unit, data for another network
        is first forwarded to the chip on that network."""
        alike = len({len(m) for m in units.values()}) == 1
        one_each = all(
            len({self.links.vertices[v].unit for v in on}) == len(on) == len(units) for on in networks.values()
        )
        if not (alike and one_each):
            for (u, mine), (w, theirs) in product(units.items(), units.items()):
                for a, b in product(mine, theirs) if u != w else ():
                    self._send(a, b, amount, loads, between)
            return
        others = len(units) - 1
        for mine in units.values():
            for a, relay in permutations(mine, 2):
                self._send(a, relay, amount * others, loads, between)
        each = len(next(iter(units.values())))
        for on in networks.values():
            self._counted(on, amount * each, loads, core)

    def _counted(self, members: Sequence[int], amount: float, loads: dict[Arc, float], core: Amounts) -> None:
        """Add an all-to-all over the largest network that the members have a port on. The bytes on a link follow from
        the number of members on each side of it."""
        total = len(members)
        behind: dict[int, float] = defaultdict(float)
        for v in members:
            outer = self._outer(v)
            for u, out, into in outer:
                loads[out] += amount * (total - 1) / len(outer)
                loads[into] += amount * (total - 1) / len(outer)
                behind[u] += 1 / len(outer)
        climbed = {u for v in behind for u in self._chain(v) if u in self._parent}
        for v in sorted(climbed, key=self._position.__getitem__):
            if (count := behind.pop(v, 0.0)) and count < total:
                for way in self._upward[v][1:3]:
                    loads[way] += amount * count * (total - count)
            if count:
                behind[self._parent[v]] += count
        for u, m in behind.items():
            for w, n in behind.items():
                if u != w:
                    core[u, w] += amount * m * n

    def _outer(self, v: int) -> list[tuple[int, Arc, Arc]]:
        """Return the ports of chip `v` that lead out of its unit: those on the network with the most vertices."""
        ports = self.ports[v]
        if len(ports) == 1:
            return ports
        sizes = [self._component_size[self._components[p[0]]] for p in ports]
        return [p for p, size in zip(ports, sizes, strict=True) if size == max(sizes)]

    @cached_property
    def _single_ports(self) -> dict[int, tuple[int, int, Arc, Arc]]:
        """For each chip with exactly one port out of its unit: the unit, the switch of that port, and the arcs out and
        in. It is empty if these ports are on several networks, or if links connect chips directly."""
        units: dict[int, set[int]] = defaultdict(set)
        for v, ports in self.ports.items():
            for u, _, _ in ports:
                units[self._components[u]].add(self.links.vertices[v].unit)
        found = {}
        networks: set[int] = set()
        for v, ports in self.ports.items():
            out = [port for port in ports if len(units[self._components[port[0]]]) > 1]
            networks.update(self._components[u] for u, _, _ in out)
            if len(out) == 1 and self.links.vertices[v].unit >= 0:
                found[v] = self.links.vertices[v].unit, *out[0]
        return found if len(networks) == 1 and not self.direct else {}

    @cached_property
    def _components(self) -> dict[int, int]:
        """For each vertex of the network, one vertex that represents its connected component."""
        found: dict[int, int] = {}
        ends = {u for ports in self.ports.values() for u, _, _ in ports}
        for start in {*self._neighbours, *ends}:
            if start in found:
                continue
            todo = [start]
            found[start] = start
            while todo:
                for w in self._neighbours.get(todo.pop(), ()):
                    if w not in found:
                        found[w] = start
                        todo.append(w)
        return found

    @cached_property
    def _component_size(self) -> dict[int, int]:
        return Counter(self._components.values())

    # The core.

    @cached_property
    def _core(self) -> SwitchCore | Grid:
        return core_of({v: near for v, near in self._next.items() if near}, self.links.symmetry)

    def hops(self, u: int, v: int) -> float:
        """Return the hops (links) from `u` to `v`, two vertices of the network; infinity if they are not connected."""
        up, down = self._chains(u, v)
        between = self._core.hops(up[-1], down[-1]) if up[-1] != down[-1] else 0.0
        return len(up) + len(down) - 2 + between

    def latency_s(self, source: int, target: int) -> float:
        """Return the latency (s) along the first of the shortest paths from chip `source` to chip `target`."""
        cables, kinds = self.links.cables, self.links.kinds
        if source == target:
            return 0.0
        if (arc := self.direct.get((source, target))) is not None:
            return kinds[cables[arc // 2].kind].latency_s
        chosen = self.port_pairs(source, target)
        if not chosen:
            path = (source, *self.relays(source, target)[0], target)
            return sum(self.latency_s(one, other) for one, other in pairwise(path))
        (u, out, _), (v, _, into) = chosen[0]
        up, down = self._chains(u, v)
        along: dict[Arc, float] = defaultdict(float)
        along.update({self._upward[w][1]: 1.0 for w in up[:-1]})
        along.update({self._upward[w][2]: 1.0 for w in down[:-1]})
        if up[-1] != down[-1]:
            self._core.push({(up[-1], down[-1]): 1.0}, along)
        passed = {out: 1.0, into: 1.0, **self.divided(along)}
        return sum(share * kinds[cables[arc // 2].kind].latency_s for arc, share in passed.items())

    def busiest(self, totals: Mapping[Arc, float]) -> tuple[float, Arc]:
        """Return the seconds that the busiest arc sends, and that arc (the first of equals); (0, -1) without arcs.

        `totals` holds the bytes on each bundle, by its first arc.
        """
        seconds = ((amount / self.paces[arc], arc) for arc, amount in totals.items())
        found, first = max(seconds, key=lambda found: found[0], default=(0.0, -1))
        return found, self.slowest_of(first)

    def slowest_of(self, first: Arc) -> Arc:
        """Return the slowest arc of the bundle whose first arc is `first`."""
        bundle = self._bundles.get(first)
        return min(bundle.arcs, key=lambda arc: self.rates[arc] / self._links_of(arc)) if bundle else first

    def arc_name(self, arc: Arc) -> str:
        """Return the names of the two ends of `arc`, in its direction."""
        cable = self.links.cables[arc // 2]
        ends = [self.links.vertices[i].name for i in (cable.source, cable.target)]
        return "-".join(ends[::-1] if arc % 2 else ends)
