"""The algorithms of a collective over the groups of some axes, routed over the links of a machine.

All groups send at once. An algorithm is a sequence of phases, each with the seconds per byte of one device's buffer on
its busiest link:

    ring           each member passes (n - 1) / n of the buffer to the next. There are as many rings as members per unit
                   (node), and each leaves the unit through another member, so that all network cards are used
    hierarchical   rings inside every unit, then between units; on a torus a gather along its dims
    tree           two binary trees over the units, each with half of the buffer (all-reduce only)
    in-network     the buffer crosses links once to a switch that adds, and once back
    all to all     each member sends a part of its buffer to every other member, on the shortest paths
    send, broadcast   each member sends the buffer once to the next member

Sources: as `planc.costing.machine.collective_time`, and for the trees Sanders et al. 2009, NCCL's src/graph/trees.cc.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from itertools import count, pairwise, permutations, product
from math import log2, prod
from typing import Any

from planc.costing.machine.topology import DeviceGroup, GroupLevel, RoutedAlgorithm, torus_dims
from planc.costing.routes.fabric import Fabric, Flow
from planc.costing.routes.fold import ArcKinds, Fold, FoldedDigits, fold_of
from planc.costing.routes.joint import LinkLoads, Shares
from planc.costing.routes.rings import (
    TorusLine,
    exchange_loads,
    gather_loads,
    gather_s,
    groups_on_line,
    send_loads,
    torus_lines,
)
from planc.diag.fast_dataclass import dataclass
from planc.graph import LinkKind, MachineLinks, machine_links
from planc.graph.from_cluster import unchanged_links
from planc.ir.cache import cached_on
from planc.ir.collective import CollectiveOp, NetworkOp
from planc.ir.garbage import gc_paused
from planc.ir.hardware import Cluster
from planc.ir.mesh import Mesh

GATHERS = {"all_gather": 1, "reduce_scatter": 1, "all_reduce": 2}
"""Collectives made of gathers or scatters, and their number."""
LL_SHARE = 0.25
"""Share of the bandwidth for a small message, which has a flag in every word."""


@dataclass(frozen=True)
class RoutedMachine:
    """The links of a machine, and caches of what is computed from them."""

    links: MachineLinks
    groups: dict[tuple[int, tuple[tuple[int, int], ...]], DeviceGroup] = field(default_factory=dict)
    """Requested groups, by the devices of the mesh and their axes' sizes and strides."""
    kinds: dict[FoldedDigits, ArcKinds] = field(default_factory=dict)
    """Arcs that are equivalent by symmetry, by the digits that symmetry permutes."""
    orders: Iterator[int] = field(default_factory=count)
    """Serial numbers of the requested loads."""
    joint: dict[tuple[LinkLoads, ...], list[Shares]] = field(default_factory=dict)
    """Cached loads of collectives that run at once on the same links."""
    same_cables: RoutedMachine | None = None
    """A machine with the same cables, each with another share of its bandwidth left."""
    _sent: dict[Hashable, Any] = field(default_factory=dict)

    @cached_property
    def fabric(self) -> Fabric:
        """The switches and cards of the machine."""
        with gc_paused():
            return self.same_cables.fabric.rated(self.links) if self.same_cables else Fabric(self.links)

    def sent(self, key: Hashable, compute: Callable[[], Any]) -> Any:
        """Return the result of `compute`, which is called once for each `key` and all machines that are like this one.

        It must not depend on the share of their bandwidth that single cables have left.
        """
        found, whole_key = (self.same_cables or self)._sent, (self.links.kinds, key)
        if whole_key not in found:
            found[whole_key] = compute()
        return found[whole_key]

    @cached_property
    def lines(self) -> tuple[TorusLine, ...]:
        """The dims of the machine's torus; () for machines without a torus."""
        return torus_lines(self.links) if self.links.shape else ()

    @cached_property
    def dies(self) -> int:
        """Number of devices on one chip of the torus."""
        return max(1, len(self.links.devices) // max(1, sum(bool(v.place) for v in self.links.vertices)))


@cached_on(lambda cluster: (cluster.cache, ()))
def machine_of(cluster: Cluster) -> RoutedMachine:
    """Return the graph of `cluster` for routing."""
    links = machine_links(cluster)
    if not cluster.changes or cluster.own_graph is not None:
        return RoutedMachine(links)
    like = unchanged_machine(cluster)
    same = like.links.vertices is links.vertices and like.links.symmetry is links.symmetry and not like.lines
    if same and [c[:4] for c in like.links.cables] == [c[:4] for c in links.cables]:
        return RoutedMachine(links, kinds=like.kinds, same_cables=like)
    return RoutedMachine(links)


@cached_on(lambda cluster: (cluster.cache, ()))
def unchanged_machine(cluster: Cluster) -> RoutedMachine:
    """Return the graph of `cluster`, a tree of switches or a torus, for routing, without the changes of `--with`."""
    return RoutedMachine(unchanged_links(cluster))


def routed_group(
    mesh: Mesh, cluster: Cluster, axes: tuple[str, ...], machine: RoutedMachine | None = None
) -> DeviceGroup:
    """Return the group over `axes` of `mesh` on the graph of `cluster`, with the routes of its collectives.

    The group's only level is the busiest link of a gather. `machine` replaces the graph of `cluster` by another graph
    with the same number of devices; None: the cluster's own graph.

    >>> routed_group(plan.mesh, plan.cluster, ("tp",)).level
    'node0.chip0-node0.switch'
    """
    machine, axes = machine or machine_of(cluster), mesh.in_order(axes)
    if not axes:
        return DeviceGroup(1, (), cluster.link.name)
    key = mesh.devices, tuple((mesh.axis(a).size, mesh.axis(a).stride) for a in axes)
    if machine.lines:  # where an axis lies on a torus depends on the others
        return _routed_group(machine, mesh, cluster, axes)
    if key not in machine.groups:
        machine.groups[key] = _routed_group(machine, mesh, cluster, axes)
    return machine.groups[key]


def _routed_group(machine: RoutedMachine, mesh: Mesh, cluster: Cluster, axes: tuple[str, ...]) -> DeviceGroup:
    size, routes = mesh.size(*axes), Routes(machine, mesh, cluster, axes)
    gather = min(routes.algorithms("all_gather"), key=lambda found: found.s_per_byte)
    rate = (1 - 1 / size) / gather.s_per_byte if gather.s_per_byte else 0.0
    kind = routes.kind_of(gather.link)
    level = GroupLevel(
        gather.link, size, 1, rate, gather.latency_s / (size - 1), call_s=routes.call_s,
        op_efficiency=kind.op_efficiency if kind else (), network=routes.outside > 1,
    )  # fmt: skip
    return DeviceGroup(size, (level,), gather.link, routes=routes)


class Routes:
    """The paths of every collective over the groups of some mesh axes, computed on demand.

    If `folding` is True, only one of the groups that are equivalent under the machine's symmetry is routed.
    """

    def __init__(
        self, machine: RoutedMachine, mesh: Mesh, cluster: Cluster, axes: tuple[str, ...], *, folding: bool = True
    ) -> None:
        self.folding = folding
        self.machine, self.fabric = machine, machine.fabric
        self._mesh, self._cluster, self._axes = mesh, cluster, axes
        self._key = mesh.devices, folding, tuple((mesh.axis(a).size, mesh.axis(a).stride) for a in axes)
        self._known: dict[str, tuple[RoutedAlgorithm, ...]] = {}
        self._kinds: dict[str, LinkKind] = {}
        self._loads: dict[tuple[int, ...], LinkLoads] = {}

    @cached_property
    def fold(self) -> Fold | None:
        """The groups to route, and how many equivalent groups each represents; None if every group is routed."""
        used = [self._mesh.axis(a) for a in self._axes if self._mesh.axis(a).size > 1]
        return fold_of(self.machine.links, used, self._mesh.devices, self.machine.kinds) if self.folding else None

    @cached_property
    def groups(self) -> list[list[int]]:
        """The members of each group in rank order, as vertices. With a fold, only one of equivalent groups counts."""
        used = [self._mesh.axis(a) for a in self._axes]
        offsets = [sum(at) for at in product(*(range(0, a.size * a.stride, a.stride) for a in used))]
        starts = self.fold.starts if self.fold else self._starts(offsets)
        devices = self.machine.links.devices
        return [[devices[start + o] for o in offsets] for start in starts]

    def _starts(self, offsets: Sequence[int]) -> list[int]:
        """Return the first rank of every group. `offsets` are the ranks of the members relative to it."""
        taken, starts = bytearray(self._mesh.devices), []
        for start in range(self._mesh.devices):
            if not taken[start]:
                starts.append(start)
                for o in offsets:
                    taken[start + o] = 1
        return starts

    @cached_property
    def units(self) -> list[list[list[int]]]:
        """For each group, the vertices (by index) of its members in each unit (node or slice) that it spans."""
        vertices = self.machine.links.vertices
        found = []
        for group in self.groups:
            units: dict[int, list[int]] = defaultdict(list)
            for v in group:
                units[vertices[v].unit].append(v)
            found.append([*units.values()])
        return found

    @property
    def size(self) -> int:
        """Number of members of a group."""
        return len(self.groups[0])

    @property
    def outside(self) -> int:
        """Number of units (nodes or slices) that a group spans; the largest of all groups."""
        return max(len(units) for units in self.units)

    @property
    def call_s(self) -> float:
        """Seconds of framework overhead per call on this machine: the maximum over its links."""
        return max(kind.call_s for kind in self.machine.links.kinds)

    def algorithms(self, op: NetworkOp) -> tuple[RoutedAlgorithm, ...]:
        """Return the algorithms for `op`, with seconds per byte of a device's buffer; () for a group of one."""
        if op not in self._known:
            with gc_paused():
                self._known[op] = tuple(self._algorithms_of(op)) if self.size > 1 else ()
        return self._known[op]

    def sending(self, op: CollectiveOp, buffer_bytes: float) -> tuple[LinkLoads, float] | None:
        """Return the link loads (busy share of each link) of the fastest algorithm for `op` with `buffer_bytes`, and
        its seconds without latency. None if it uses no links.

        >>> _, seconds = Routes(machine_of(plan.cluster), plan.mesh, plan.cluster, ("tp",)).sending("all_gather", 8e9)
        >>> round(seconds, 5)  # 7 GB through each device's link of 450 GB/s
        0.01556
        """
        algorithm = min(self.algorithms(op), key=lambda found: found.seconds(buffer_bytes), default=None)
        if algorithm is None or not any(totals for _, totals in algorithm.loads):
            return None
        key = tuple(id(totals) for _, totals in algorithm.loads)  # which the loads keep alive
        if key not in self._loads:
            self._loads[key] = self.loads_of(algorithm, next(self.machine.orders))
        return self._loads[key], algorithm.seconds(buffer_bytes) - algorithm.latency_s

    def loads_of(self, algorithm: RoutedAlgorithm, order: int) -> LinkLoads:
        """Return the link loads of `algorithm`. `order` is the serial number of these loads on this machine."""
        return LinkLoads(algorithm, self.fabric.paces, self.fold, self.machine.joint, order)

    def _algorithms_of(self, op: NetworkOp) -> Iterator[RoutedAlgorithm]:
        if op == "all_to_all":
            yield self._all_to_all()
        elif op in ("send_recv", "broadcast"):
            yield self._once(op)
        else:
            yield from (way.times(GATHERS[op]) for way in self._gathers())
            if op == "all_reduce":
                yield from self._all_reduces()

    # Gathers.

    def _gathers(self) -> Iterator[RoutedAlgorithm]:
        if "gathers" not in self._known:
            self._known["gathers"] = (*self._found_gathers(),)
        yield from self._known["gathers"]

    def _found_gathers(self) -> Iterator[RoutedAlgorithm]:
        inside = max(len(members) for units in self.units for members in units)
        if not self.machine.lines or inside == 1:
            yield self._ring
        if inside > 1 and (self.outside > 1 or self.machine.lines):
            near, far = self._inside, self._peers
            yield near.then(far, "hierarchical" if self.outside > 1 else near.name)
        if self.outside > 1:
            near, far = self._inside, self._peers
            hops_s = log2(self.outside) * self._unit_hop_s
            yield near.then(
                RoutedAlgorithm("tree", far.s_per_byte / LL_SHARE, hops_s, far.link, 0.0, far.loads), "tree"
            )

    @cached_property
    def _ring(self) -> RoutedAlgorithm:
        """A ring through all members. If every unit has m members, there are m rings, each of which leaves the units
        through another member."""
        part = 1 - 1 / self.size

        def flows() -> Iterator[Flow]:
            for units in self.units:
                m = len(units[0])
                if len(units) > 1 and all(len(members) == m for members in units):
                    yield from self._rings_by_member(units, part)
                else:
                    yield from self._around([v for unit in units for v in unit], part)

        return self._routed("ring", self._totals("ring", flows), self._ring_latency_s)

    def _rings_by_member(self, units: Sequence[Sequence[int]], part: float) -> Iterator[Flow]:
        """Yield the flows of as many rings as a unit has members. Each ring carries an equal part of the buffer, and
        enters and leaves every unit through a different member. One ring would pass on the share `part` of it."""
        m = len(units[0])
        for a, b in zip(units, [*units[1:], units[0]], strict=True):
            yield from ((a[j], b[j], part / m) for j in range(m))
        for members in units:
            yield from self._around(members, part * (m - 1) / m)

    def _around(self, members: Sequence[int], part: float) -> list[Flow]:
        """Return the flows in which each member sends `part` of the buffer: to the next one, or an equal share to each
        of the others where a link of its own joins every two."""
        ring = [(a, b, part) for a, b in zip(members, [*members[1:], members[0]], strict=True) if a != b]
        if len(members) < 3 or not all((a, b) in self.fabric.direct for a, b, _ in ring):
            return ring
        pairs = [*permutations(members, 2)]
        joined = all(pair in self.fabric.direct for pair in pairs)
        return [(a, b, part / (len(members) - 1)) for a, b in pairs] if joined else ring

    @cached_property
    def _ring_latency_s(self) -> float:
        """Latency (s) of a message from the first to the last member of the first group, along its ring."""
        return self._along_s("ring", (v for unit in self.units[0] for v in unit))

    def _along_s(self, what: str, members: Iterable[int]) -> float:
        """Return the latency (s) of a message along `members`; that between two units is of their first members in it.
        `what` names them among those of these axes."""

        def total_s() -> float:
            vertices, known, total = self.machine.links.vertices, dict[tuple[int, int], float](), 0.0
            for a, b in pairwise(members):
                key = vertices[a].unit, vertices[b].unit
                if key not in known:
                    known[key] = self.fabric.latency_s(a, b)
                total += known[key]
            return total

        found: float = self.machine.sent((self._key, "latency", what), total_s)
        return found

    @cached_property
    def _inside(self) -> RoutedAlgorithm:
        """A gather inside every unit (node or slice)."""
        if self.machine.lines:
            return self._along_lines()

        def flows() -> Iterator[Flow]:
            for members in (members for units in self.units for members in units):
                yield from self._around(members, 1 - 1 / len(members))

        first = self.units[0][0]
        latency_s = sum(self.fabric.latency_s(a, b) for a, b in pairwise(first))
        return self._routed("ring", self._totals("inside", flows), latency_s)

    @cached_property
    def _peers(self) -> RoutedAlgorithm:
        """A gather between units, among the members that have the same position in their unit."""
        if self.outside == 1:
            return RoutedAlgorithm("none", 0.0, 0.0, "")
        if all(len(members) == 1 for units in self.units for members in units):
            return self._ring

        def flows() -> Iterator[Flow]:
            return ((a, b, part * (1 - 1 / count)) for a, b, part, count in self._between_peers())

        latency_s = self._along_s("peers", self._far_units)
        return self._routed("ring", self._totals("peers", flows), latency_s)

    def _between_peers(self) -> Iterator[tuple[int, int, float, int]]:
        """Yield the two ends of each link of rings through the units of each group, one ring for each member of a unit.
        After them come the share of such a ring in the buffer, and the number of the group's units."""
        for units in (units for units in self.units if len(units) > 1):
            m = max(len(members) for members in units)
            for j in range(m):
                peers = [members[j % len(members)] for members in units]
                yield from ((a, b, 1 / m, len(units)) for a, b in zip(peers, [*peers[1:], peers[0]], strict=True))

    @cached_property
    def _far_units(self) -> list[int]:
        """One member in each unit, of the group that spans the most units."""
        return [members[0] for members in max(self.units, key=len)]

    @cached_property
    def _unit_hop_s(self) -> float:
        """Latency (s) from the first unit of a group to the second or to the last, whichever is longer."""
        first, second, *_, last = [*self._far_units, self._far_units[-1]]
        return max(self.fabric.latency_s(first, second), self.fabric.latency_s(first, last))

    # On a torus.

    @cached_property
    def _offsets(self) -> dict[int, list[int]]:
        """For each torus dim in use, the positions of the first group's members along it."""
        placed = torus_dims(self._mesh, self._cluster, self._axes)
        parts: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for axis in self._axes:
            for dim, ring in placed.get(axis, ()):
                parts[dim].append((ring.size, ring.stride))
        return {
            dim: sorted(sum(at) for at in product(*(range(0, n * s, s) for n, s in rings)))
            for dim, rings in parts.items()
        }

    @cached_property
    def _dies(self) -> int:
        """Number of the group's members on one chip."""
        inside = max(len(members) for members in self.units[0])
        return inside // max(1, prod(len(at) for at in self._offsets.values()))

    def _line_groups(self) -> Iterator[tuple[TorusLine, list[list[int]], int]]:
        """Yield each torus dim in use, the groups on one of its lines, and the number of a group's members on it."""
        for dim, offsets in self._offsets.items():
            line = self.machine.lines[dim]
            yield line, groups_on_line(line.length, offsets), len(offsets)

    def _along_lines(self) -> RoutedAlgorithm:
        """Return a gather over the dies of each chip, and then over the dims of the torus.

        Dies of one chip share its links: they belong to different groups, or each forwards a part of the data.
        """
        die = self._over_dies()
        found = [
            (n, *line.seconds(gather_loads(line, groups)), line, groups) for line, groups, n in self._line_groups()
        ]
        if not found:
            return die
        share = self.machine.dies / self._dies
        seconds = gather_s([n for n, *_ in found], [s for _, s, *_ in found]) * share
        hops = sum(_farthest(line, groups[0]) * line.latency_s for *_, line, groups in found)
        name = f"{len(found)} rings" if len(found) > 1 else "ring"
        _, _, link, *_ = max(found, key=lambda one: one[1])
        return die.then(RoutedAlgorithm(name, seconds, hops, link), name)

    def _over_dies(self) -> RoutedAlgorithm:
        if self._dies == 1:
            return RoutedAlgorithm("none", 0.0, 0.0, "")
        flows: list[Flow] = []
        for members in (members for units in self.units for members in units):
            for i in range(0, len(members), self._dies):
                chip = members[i : i + self._dies]
                flows += [(a, b, 1 - 1 / self._dies) for a, b in zip(chip, [*chip[1:], chip[0]], strict=True)]
        return self._routed("ring", self._totals("dies", lambda: flows), 0.0)

    # Other collectives.

    def _all_reduces(self) -> Iterator[RoutedAlgorithm]:
        if self.outside > 1:
            yield self._tree()
        if (reduced := self._in_network()) is not None:
            yield reduced

    def _tree(self) -> RoutedAlgorithm:
        """Return an all-reduce up and down two binary trees over the units, with chains of members inside units."""

        def up() -> Iterator[Flow]:
            for units in self.units:
                for members in units if not self.machine.lines else ():
                    if (k := len(members)) > 1:  # as many chains, each with a part, that end in another member
                        yield from ((b, a, amount) for a, b, amount in self._around(members, 1 - 1 / k))
                tree = double_tree(len(units))
                for j in range(m := max(len(members) for members in units)):
                    peers = [members[j % len(members)] for members in units]
                    yield from ((peers[a], peers[b], 0.5 / m) for a, b in tree)

        latency_s = self._inside.latency_s + log2(self.outside) * self._unit_hop_s
        ways = self._totals("up", up), self._totals("down", lambda: ((b, a, amount) for a, b, amount in up()))
        one, other = (self._routed("tree", totals, latency_s) for totals in ways)
        both = one.then(other, "tree")
        inside = max(len(members) for units in self.units for members in units)
        if self.machine.lines and inside > 1:  # along the slice's lines, all but what a root has
            near = self._along_lines().times(2)
            share = (1 - (0.5 if self.outside == 2 else 0.0) / inside) / (1 - 1 / inside)
            both = max(both, RoutedAlgorithm("tree", near.s_per_byte * share, both.latency_s, near.link), key=_s)
        return both

    def _in_network(self) -> RoutedAlgorithm | None:
        """Return an all-reduce in which switches add numbers: the buffer crosses a link once up and once down, or twice
        on links without such switches. None if the switches of the members do not add."""
        links, fabric = self.machine.links, self.fabric
        if not any(v.reduction for v in links.vertices):
            return None
        once: dict[int, float] = defaultdict(float)
        for members in (members for units in self.units for members in units if len(members) > 1):
            for v in members:
                ports = [p for p in fabric.ports[v] if links.vertices[p[0]].reduction]
                if not ports:
                    return None
                for u, out, into in ports:
                    once[out] += 1 / links.vertices[u].reduction / len(ports)
                    once[into] += 1 / links.vertices[u].reduction / len(ports)
        every_far = self._totals("added", lambda: ((a, b, 2 * part) for a, b, part, _ in self._between_peers()))
        every_near = self._of_all_groups(self._folded(once))
        far_s, far = fabric.busiest(every_far)
        near_s, near = fabric.busiest(every_near)
        if not near_s:
            return None
        first = self.units[0][0]
        latency_s = 2 * fabric.latency_s(first[0], first[-1])
        return RoutedAlgorithm(
            "in-network reduction", max(near_s, far_s), latency_s, fabric.arc_name(near if near_s >= far_s else far),
            loads=((1, every_near), (1, every_far)),
        )  # fmt: skip

    def _all_to_all(self) -> RoutedAlgorithm:
        each = 1 / self.size
        if not self.machine.lines:
            latency_s = self.fabric.latency_s(self.groups[0][0], self.groups[0][-1])
            exchanges = [(group, each) for group in self.groups]
            return self._routed("all to all", self._totals("exchange", tuple, exchanges), latency_s)
        latency_s = sum(_farthest(line, groups[0]) * line.latency_s for line, groups, _ in self._line_groups())
        latency_s += log2(self.outside) * self._unit_hop_s if self.outside > 1 else 0.0
        across: list[tuple[Sequence[int], float]] = []
        if self.outside > 1:  # members of a slice reach each other over its own links
            across = [(group, each) for group in self.groups]
            across += [(members, -each) for units in self.units for members in units]
        best = self._routed("all to all", self._totals("exchange", tuple, across), latency_s)
        inside = len(self.units[0][0])
        for line, groups, n in self._line_groups():
            amount = inside / n * each * self.machine.dies
            seconds, link = line.seconds(exchange_loads(line, groups))
            best = max(best, RoutedAlgorithm("all to all", seconds * amount, latency_s, link), key=_s)
        if self._dies > 1:
            out = self.fabric.ports[self.groups[0][0]][0][1]
            own_s = (1 - each) / self.fabric.rates[out]
            best = max(best, RoutedAlgorithm("all to all", own_s, latency_s, self.fabric.arc_name(out)), key=_s)
        return best

    def _once(self, op: NetworkOp) -> RoutedAlgorithm:
        """Return a send or broadcast: one message from each member to the next, over one of several parallel links."""
        name = "point to point" if op == "send_recv" else "tree"
        inside = max(len(members) for members in self.units[0])
        if self.machine.lines and inside > 1:
            near = self._once_on_lines(op)
            if self.outside == 1:
                return RoutedAlgorithm(name, near.s_per_byte, near.latency_s, near.link)
            flows = [(a[-1], b[0], 1.0) for units in self.units for a, b in pairwise(units)]
            far = self._message(name, flows)
            return max(near, far, key=_s)
        flows = [(a, b, 1.0) for group in self.groups for a, b in pairwise(group)]
        if op == "broadcast" and self.outside == 1:
            around = [flow for group in self.groups for flow in self._around(group, 1.0)]
            if len(around) > len(flows) + len(self.groups):  # parts of it, over all links between the members
                return self._routed(name, self._totals("around", lambda: around), self._ring_latency_s)
        return self._message(name, flows)

    def _totals(
        self, what: str, flows: Callable[[], Iterable[Flow]], exchanges: Iterable[tuple[Sequence[int], float]] = ()
    ) -> Mapping[int, float]:
        """Return the bytes that all groups together put on each bundle of links, when each of the routed groups sends
        `flows` and `exchanges`. `what` names these among those of the axes."""
        found = self.machine.sent((self._key, what), lambda: self._folded(self.fabric.totals(flows(), exchanges)))
        return self._of_all_groups(found)

    def _folded(self, totals: Mapping[int, float]) -> dict[int, tuple[int, float]]:
        return self.fold.folded(totals) if self.fold else {arc: (arc, total) for arc, total in totals.items()}

    def _of_all_groups(self, folded: Mapping[int, tuple[int, float]]) -> Mapping[int, float]:
        """Return the bytes that all groups together put on each bundle of links, by its first arc. With a fold, a
        bundle represents its equivalents; those with a degraded link are listed too."""
        every = dict(folded.values())
        if (fold := self.fold) is not None:
            for arc in self.fabric.uneven:
                if (total := fold.on_arc(arc, folded)) is not None:
                    every.setdefault(arc, total)
        return every

    def _message(self, name: str, flows: Sequence[Flow]) -> RoutedAlgorithm:
        """Return the algorithm called `name` that sends whole messages, each over one of several parallel links."""
        fabric, cables = self.fabric, self.machine.links.cables
        way = self._routed(name, self._totals(name, lambda: flows), fabric.latency_s(flows[0][0], flows[0][1]))
        used = (fabric.slowest_of(arc) for _, totals in way.loads for arc in totals)
        single = max(((cables[arc // 2].links / fabric.rates[arc], arc) for arc in used), default=(0, -1))
        if single[0] > way.s_per_byte:
            return way._replace(s_per_byte=single[0], link=fabric.arc_name(single[1]), half_s=0.0)
        return way

    def _once_on_lines(self, op: NetworkOp) -> RoutedAlgorithm:
        name = "point to point" if op == "send_recv" else "tree"
        share = self.machine.dies / self._dies if self._dies else 1.0
        found = []
        for line, groups, _ in self._line_groups():
            loads = send_loads(line, groups) if op == "send_recv" else gather_loads(line, groups)
            seconds, link = line.seconds(loads)
            found.append((seconds * share, line.latency_s * (groups[0][1] - groups[0][0]), link))
        if not found:
            own = self._over_dies()
            return RoutedAlgorithm(name, own.s_per_byte * 2, own.latency_s, own.link)
        if op == "send_recv":
            seconds, latency_s, link = max(found)
            return RoutedAlgorithm(name, seconds, latency_s, link)
        return RoutedAlgorithm(name, 1 / sum(1 / s for s, _, _ in found), sum(s for _, s, _ in found), max(found)[2])

    def _routed(self, name: str, totals: Mapping[int, float], latency_s: float) -> RoutedAlgorithm:
        seconds, arc = self.fabric.busiest(totals)
        if arc < 0:
            return RoutedAlgorithm(name, 0.0, latency_s, "")
        kind = self.machine.links.kinds[self.machine.links.cables[arc // 2].kind]
        link = self.fabric.arc_name(arc)
        self._kinds[link] = kind
        return RoutedAlgorithm(name, seconds, latency_s, link, kind.half_bytes * seconds, ((1, totals),))

    def kind_of(self, link: str) -> LinkKind | None:
        """Return the properties of the link called `link`; None if it was not the busiest link of any algorithm."""
        return self._kinds.get(link)


def _s(algorithm: RoutedAlgorithm) -> float:
    return algorithm.s_per_byte


def double_tree(count: int) -> list[tuple[int, int]]:
    """Return the (child, parent) pairs of two binary trees over `count` units. Inner units of one are the other's
    leaves.

    >>> double_tree(4)
    [(1, 2), (2, 0), (3, 2), (2, 1), (1, 3), (0, 1)]
    """
    first = [(child, _parent(child, count)) for child in range(1, count)]
    if count % 2:
        return [*first, *(((a + 1) % count, (b + 1) % count) for a, b in first)]
    return [*first, *((count - 1 - a, count - 1 - b) for a, b in first)]


def _parent(child: int, count: int) -> int:
    """Return the parent of `child` in a tree of `count` units with root 0 and odd leaves (NCCL, src/graph/trees.cc)."""
    bit = child & -child
    above = (child ^ bit) | bit << 1
    return above if above < count else child ^ bit


def _farthest(line: TorusLine, group: Sequence[int]) -> int:
    """Return the number of hops between the first member of `group` and the member farthest from it."""
    ways = [(b - group[0]) % line.length for b in group]
    return max(min(w, line.length - w) if line.wrapped else w for w in ways)
