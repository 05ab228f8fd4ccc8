"""Flows over the switches of a machine: each on its shortest paths, divided equally among them (ECMP).

Chips do not forward: a flow between two of them leaves by a port, crosses switches and cards, and comes in by a port.
Two steps make a large network small before any path is sought, and both are exact. Switches with the same neighbours
and no ports of their own are one switch of several (spines of a Clos). A vertex with a single neighbour has a single
way, so it is taken off, and its flows start at its neighbour. A tower of levels is gone after that; of other networks a
core is left, whose flows are pushed towards each of their targets in turn. Equal shares at every hop: RFC 2992,
https://www.rfc-editor.org/rfc/rfc2992.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from itertools import permutations, product

from planc.diag.fast_dataclass import dataclass
from planc.graph.links import MachineLinks

Flow = tuple[int, int, float]
"""From a vertex to a vertex, so many bytes."""
Arc = int
"""A direction of a cable: twice its number there, one more back."""


@dataclass
class Bundle:
    """The arcs between two vertices of the reduced network, one way, and the links that they are."""

    arcs: list[Arc] = field(default_factory=list)
    links: float = 0.0


class Fabric:
    """A machine's network of switches and cards, with its chips at the ends."""

    def __init__(self, links: MachineLinks) -> None:
        self.links = links
        self.rates = [rate for cable in links.cables for rate in links.bytes_per_s(cable)]
        self._ends = [v.device >= 0 for v in links.vertices]
        self.direct: dict[tuple[int, int], Arc] = {}
        self.ports: dict[int, list[tuple[int, Arc, Arc]]] = defaultdict(list)
        """For each chip the switches or cards that it is on, with the arc there and the arc back."""
        self._next: dict[int, dict[int, Bundle]] = defaultdict(dict)
        for number, cable in enumerate(links.cables):
            self._add(2 * number, cable.source, cable.target, cable.links)
            self._add(2 * number + 1, cable.target, cable.source, cable.links)
        self._neighbours = {v: [*near] for v, near in self._next.items()}
        self._parent: dict[int, int] = {}
        self._position: dict[int, int] = {}
        """Vertices with a known way, in the order in which they were taken off: those behind before those ahead."""
        self._path_of: dict[tuple[int, int], Bundle] = {}
        self._reduce()
        self._known: dict[int, list[int]] = {}
        self._from: dict[int, dict[int, int]] = {}
        self._components: dict[int, int] = {}
        self._component_size: dict[int, int] = defaultdict(int)

    def _add(self, arc: Arc, source: int, target: int, links: float) -> None:
        one, other = self._ends[source], self._ends[target]
        if one and other:
            if not self.links.vertices[source].place:
                self.direct[source, target] = arc
        elif one:
            self.ports[source].append((target, arc, arc ^ 1))
        elif not other and not (self.links.vertices[source].place and self.links.vertices[target].place):
            bundle = self._next[source].setdefault(target, Bundle())
            bundle.arcs.append(arc)
            bundle.links += links

    # Reduction.

    def _reduce(self) -> None:
        held = {u for ports in self.ports.values() for u, _, _ in ports}
        changed = True
        while changed:
            changed = self._merge_twins(held) | self._strip(held)

    def _merge_twins(self, held: set[int]) -> bool:
        """Switches with the same neighbours over the same links, on which nothing hangs, become one."""
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
        """Vertices with one neighbour, whose way is known."""
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
        """Bytes on each arc when all `flows` and `exchanges` run at once.

        An exchange is chips of which each sends so many bytes to every other.
        """
        loads: dict[Arc, float] = defaultdict(float)
        between: _Amounts = defaultdict(float)
        core: _Amounts = defaultdict(float)
        for source, target, amount in flows:
            self._send(source, target, amount, loads, between)
        for members, amount in exchanges:
            self._exchange(members, amount, loads, between, core)
        for (u, v), amount in between.items():
            self._climb(u, v, amount, loads, core)
        self._push(core, loads)
        return loads

    def _send(self, source: int, target: int, amount: float, loads: dict[Arc, float], between: _Amounts) -> None:
        """One flow: on the links of both chips, and between the switches that they are on."""
        if source == target or not amount:
            return
        if (arc := self.direct.get((source, target))) is not None:
            loads[arc] += amount
            return
        chosen = self.port_pairs(source, target)
        if not chosen:
            relays = self.relays(source, target)
            for relay in relays:
                self._send(source, relay, amount / len(relays), loads, between)
                self._send(relay, target, amount / len(relays), loads, between)
            return
        each = amount / len(chosen)
        for (u, out, _), (v, _, into) in chosen:
            loads[out] += each
            loads[into] += each
            if u != v:
                between[u, v] += each

    def port_pairs(self, source: int, target: int) -> list[tuple[tuple[int, Arc, Arc], tuple[int, Arc, Arc]]]:
        """The ports by which the shortest paths (in hops) from `source` to `target`, two chips, leave and come in.

        Software picks the port: of equal paths those over the fastest ones, NVLink before PCIe.
        """
        mine, theirs = self.ports[source], self.ports[target]
        pairs = [(p, q) for p in mine for q in theirs if self._component(p[0]) == self._component(q[0])]
        if len(pairs) <= 1:
            return pairs
        hops = [self.hops(p[0], q[0]) for p, q in pairs]
        least = min(hops)
        near = [pair for pair, far in zip(pairs, hops, strict=True) if far == least]
        rates = [min(self.rates[out], self.rates[into]) for (_, out, _), (_, _, into) in near]
        return [pair for pair, rate in zip(near, rates, strict=True) if rate >= max(rates) * (1 - 1e-9)]

    def relays(self, source: int, target: int) -> list[int]:
        """The chips in the unit of `source` that pass its data on to `target`, to which no switches lead from it.

        On rails without spines a GPU reaches other rails over the peer in its node that is on them: NCCL's PXN.
        """
        unit = self.links.vertices[source].unit
        found = (
            [v for v in self._chips_of[unit] if self.joined(source, v) and self.joined(v, target)] if unit >= 0 else []
        )
        if not found:
            ends = " and ".join(self.links.vertices[v].name for v in (source, target))
            raise ValueError(f"no network joins {ends}")
        return found

    def joined(self, source: int, target: int) -> bool:
        """True if a link or a network of switches leads from `source` to `target`, two chips."""
        if (source, target) in self.direct:
            return True
        mine, theirs = ({self._component(p[0]) for p in self.ports[v]} for v in (source, target))
        return source != target and not mine.isdisjoint(theirs)

    @cached_property
    def _chips_of(self) -> dict[int, list[int]]:
        """The chips of each unit."""
        found: dict[int, list[int]] = defaultdict(list)
        for v in self.links.devices:
            found[self.links.vertices[v].unit].append(v)
        return found

    def _climb(self, u: int, v: int, amount: float, loads: dict[Arc, float], core: _Amounts) -> None:
        """Along the ways of both ends until they meet, or reach the core."""
        up, down = self._chains(u, v)
        if up[-1] != down[-1]:
            core[up[-1], down[-1]] += amount
        for a, b in itertools.pairwise(up):
            self._carry(self._path_of[a, b], amount, loads)
        for a, b in itertools.pairwise(down):
            self._carry(self._path_of[b, a], amount, loads)

    def _chains(self, u: int, v: int) -> tuple[list[int], list[int]]:
        """The known ways of two vertices, up to where they meet or reach the core."""
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

    def _carry(self, bundle: Bundle, amount: float, loads: dict[Arc, float]) -> None:
        """The amount, divided over the links of a bundle."""
        if len(bundle.arcs) == 1:
            loads[bundle.arcs[0]] += amount
            return
        for arc in bundle.arcs:
            loads[arc] += amount * self.links.cables[arc // 2].links / bundle.links

    def _exchange(
        self, members: Sequence[int], amount: float, loads: dict[Arc, float], between: _Amounts, core: _Amounts
    ) -> None:
        """Each of the members to each other: those of a unit pair by pair, the others by how many are behind a link."""
        if amount < 0 or all(len(self.ports[v]) == 1 for v in members):
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
            networks[self._component(self._outer(v)[0][0])].append(v)
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
        between: _Amounts,
        core: _Amounts,
    ) -> None:
        """Members of several networks: in every unit what is for another network goes to its chip there first."""
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

    def _counted(self, members: Sequence[int], amount: float, loads: dict[Arc, float], core: _Amounts) -> None:
        """An exchange over the widest network that the chips have a port on."""
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
                above = self._parent[v]
                self._carry(self._path_of[v, above], amount * count * (total - count), loads)
                self._carry(self._path_of[above, v], amount * count * (total - count), loads)
            if count:
                behind[self._parent[v]] += count
        for u, m in behind.items():
            for w, n in behind.items():
                if u != w:
                    core[u, w] += amount * m * n

    def _outer(self, v: int) -> list[tuple[int, Arc, Arc]]:
        """The ports of a chip that lead out of its unit: those on the network with the most vertices."""
        ports = self.ports[v]
        if len(ports) == 1:
            return ports
        sizes = [self._component_size[self._component(p[0])] for p in ports]
        return [p for p, size in zip(ports, sizes, strict=True) if size == max(sizes)]

    def _component(self, v: int) -> int:
        if not self._components:
            ends = {u for ports in self.ports.values() for u, _, _ in ports}
            for start in {*self._neighbours, *ends}:
                if start in self._components:
                    continue
                todo = [start]
                self._components[start] = start
                while todo:
                    u = todo.pop()
                    self._component_size[start] += 1
                    for w in self._neighbours.get(u, ()):
                        if w not in self._components:
                            self._components[w] = start
                            todo.append(w)
        return self._components[v]

    # The core.

    def hops(self, u: int, v: int) -> float:
        """Hops (links) from `u` to `v`, two vertices of the network; infinity where none lead there."""
        up, down = self._chains(u, v)
        between = 0.0 if up[-1] == down[-1] else self._hops_to(down[-1]).get(up[-1], float("inf"))
        return len(up) + len(down) - 2 + between

    def _hops_to(self, target: int) -> dict[int, int]:
        """Hops of every vertex of the core to `target`."""
        if target not in self._from:
            found, here = {target: 0}, [target]
            while here:
                after = []
                for v in here:
                    for u in self._next[v]:
                        if u not in found:
                            found[u] = found[v] + 1
                            after.append(u)
                here = after
            self._from[target] = found
        return self._from[target]

    def _push(self, core: Mapping[tuple[int, int], float], loads: dict[Arc, float]) -> None:
        """Flows of the core, one target after the other: what comes into a vertex is divided over the links ahead."""
        by_target: dict[int, dict[int, float]] = defaultdict(dict)
        for (u, v), amount in core.items():
            by_target[v][u] = amount
        for target, sources in by_target.items():
            far = self._hops_to(target)
            most = max(far[u] for u in sources)
            here: list[dict[int, float]] = [{} for _ in range(most + 1)]
            for u, amount in sources.items():
                here[far[u]][u] = amount
            for level in range(most, 0, -1):
                below = here[level - 1]
                for u, amount in here[level].items():
                    near = [(w, b) for w, b in self._next[u].items() if far[w] == level - 1]
                    total = sum(b.links for _, b in near)
                    for w, bundle in near:
                        part = amount * bundle.links / total
                        self._carry(bundle, part, loads)
                        below[w] = below.get(w, 0.0) + part

    def latency_s(self, source: int, target: int) -> float:
        """Seconds of the latencies along the first of the shortest paths from `source` to `target`, two chips."""
        cables, kinds = self.links.cables, self.links.kinds
        if source == target:
            return 0.0
        if (arc := self.direct.get((source, target))) is not None:
            return kinds[cables[arc // 2].kind].latency_s
        chosen = self.port_pairs(source, target)
        if not chosen:
            relay = self.relays(source, target)[0]
            return self.latency_s(source, relay) + self.latency_s(relay, target)
        (u, out, _), (v, _, into) = chosen[0]
        core: dict[tuple[int, int], float] = defaultdict(float)
        passed: dict[Arc, float] = {out: 1.0, into: 1.0}
        along: dict[Arc, float] = defaultdict(float)
        self._climb(u, v, 1.0, along, core)
        self._push(core, along)
        passed.update(along)
        return sum(share * kinds[cables[arc // 2].kind].latency_s for arc, share in passed.items())

    def busiest(self, loads: Mapping[Arc, float]) -> tuple[float, Arc]:
        """Seconds that the busiest arc of `loads` sends, and which it is, the first of equal ones; (0, -1) for none."""
        seconds = ((amount / self.rates[arc], arc) for arc, amount in loads.items())
        return max(seconds, key=lambda found: found[0], default=(0.0, -1))

    def arc_name(self, arc: Arc) -> str:
        """The two ends of `arc`, in its direction."""
        cable = self.links.cables[arc // 2]
        ends = [self.links.vertices[i].name for i in (cable.source, cable.target)]
        return "-".join(ends[::-1] if arc % 2 else ends)


_Amounts = dict[tuple[int, int], float]
