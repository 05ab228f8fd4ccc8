"""The network levels that a group of devices spans: the number of its members at each level, and the level's bandwidth.

Axes are mapped to the machine outermost first, so the innermost axis fills a node (or one ring of a torus). A group is
described from one member upwards: the chip (if it is several devices), the node's links or the torus, and each level of
the network. No devices are enumerated.

Source: public scaling book (https://jax-ml.github.io/scaling-book), tpus, sharding and gpus chapters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import ceil, gcd, inf, prod
from typing import Any, NamedTuple, Protocol

from planc.diag.fast_dataclass import dataclass
from planc.ir.collective import NetworkOp
from planc.ir.hardware import Cluster, Level
from planc.ir.mesh import Axis, Mesh
from planc.ir.op_tables import OpTable


@dataclass(frozen=True, slots=True)
class Ring:
    """A group's members along one torus dim. Neighbours are `stride` chips apart, with other groups in between."""

    size: int
    wrapped: bool
    """True if the last member is a neighbour of the first."""
    stride: int = 1
    bidirectional: bool = True

    @property
    def links(self) -> float:
        """Number of links that one group has: 2 on a bidirectional ring, else 1, divided by the groups that share them.

        >>> Ring(4, wrapped=True).links, Ring(4, wrapped=False, stride=2).links
        (2.0, 0.5)
        """
        return (2 if self.wrapped and self.bidirectional else 1) / self.stride

    @property
    def hops(self) -> int:
        """Number of hops between the two members farthest apart.

        >>> Ring(8, wrapped=True).hops, Ring(8, wrapped=False).hops
        (4, 7)
        """
        return (self.size // 2 if self.wrapped and self.bidirectional else self.size - 1) * self.stride

    @property
    def crossing(self) -> float:
        """Bytes on the busiest link in an all-to-all, as a multiple of one member's buffer.

        The mean distance is size / 4 around a bidirectional ring, over 2 links per member, and (size - 1) / 2 in one
        direction. On a line, half of each half's data crosses the middle (public scaling book, sharding.md).

        >>> Ring(8, wrapped=True).crossing, Ring(8, wrapped=False).crossing
        (1.0, 2.0)
        """
        if not self.wrapped:
            return self.stride * self.size / 4
        return self.stride * (self.size / 8 if self.bidirectional else (self.size - 1) / 2)


@dataclass(frozen=True, slots=True)
class GroupLevel:
    """One level (network tier) of a group. It connects `members` units (chips, nodes, ...) with `below` devices each.

    `bytes_per_s` is a device's bandwidth in one direction when all devices of a unit send at once, efficiency included.
    """

    name: str
    members: float
    below: float
    bytes_per_s: float
    latency_s: float
    half_bytes: float = 0.0
    """The transfer size (bytes) that achieves half of the bandwidth."""
    call_s: float = 0.0
    """The framework's own time per call (s)."""
    op_efficiency: tuple[tuple[str, float], ...] = ()
    """Collectives that achieve only a share of the curve's bandwidth."""
    reduction: float = 0.0
    """Bytes all-reduced in the switches per byte that a unit can send; 0 if the switches do not add."""
    rings: tuple[Ring, ...] = ()
    """The torus dims, if the level is a torus."""
    network: bool = False
    """True outside the node, where messages cross a tree of switches."""
    message_bytes_per_s: float = inf
    """One-way bandwidth of one of a unit's uplinks: the maximum for one message."""
    hosts: int = 1
    """Hosts per unit, each with its own links; a slice of a torus has several."""
    links: float = 0.0
    """Links from a member to the others, one each, of which a message takes one; 0: a switch is between them."""
    tables: tuple[OpTable, ...] = ()
    """Measured rates of collectives over groups within this level."""
    declared_bytes_per_s: float = 0.0
    """The bandwidth to which the tables' shares refer."""

    @property
    def unit_bytes_per_s(self) -> float:
        """Bandwidth of a unit's members together (bytes/s).

        >>> GroupLevel("leaf", members=4, below=8, bytes_per_s=50e9, latency_s=0.0).unit_bytes_per_s
        400000000000.0
        """
        return self.below * self.bytes_per_s


class RoutedAlgorithm(NamedTuple):
    """One algorithm of a collective, routed over a machine's links."""

    name: str
    s_per_byte: float
    """Seconds that the busiest link sends per byte of one device's buffer."""
    latency_s: float
    link: str
    """The busiest link."""
    half_s: float = 0.0
    """Additional seconds because small messages do not saturate the link; at most 3 times the sending time."""
    loads: tuple[tuple[int, Mapping[int, float]], ...] = ()
    """Phases: how often each runs, and its bytes on links per byte of the buffer, by the index of the first arc of a
    bundle. () along the lines of a torus."""

    def seconds(self, buffer_bytes: float) -> float:
        """Seconds of one call with a buffer of `buffer_bytes`.

        >>> RoutedAlgorithm("ring", s_per_byte=1e-9, latency_s=1e-6, link="a-b").seconds(1e6)
        0.001001
        """
        sent_s = buffer_bytes * self.s_per_byte
        return sent_s + min(self.half_s, 3 * sent_s) + self.latency_s

    def times(self, count: int) -> RoutedAlgorithm:
        """Return this algorithm repeated `count` times in sequence.

        >>> RoutedAlgorithm("ring", 1e-9, 1e-6, "a-b").times(2).s_per_byte
        2e-09
        """
        n = count
        loads = tuple((n * count, totals) for count, totals in self.loads)
        return RoutedAlgorithm(self.name, n * self.s_per_byte, n * self.latency_s, self.link, n * self.half_s, loads)

    def then(self, other: RoutedAlgorithm, name: str) -> RoutedAlgorithm:
        """Return this algorithm and then `other`, as one called `name`. Its busiest link is that of the slower one.

        >>> RoutedAlgorithm("ring", 1e-9, 0, "a-b").then(RoutedAlgorithm("ring", 3e-9, 0, "b-c"), "hierarchical").link
        'b-c'
        """
        link = max(self, other, key=lambda one: one.s_per_byte).link
        sent_s, latency_s = self.s_per_byte + other.s_per_byte, self.latency_s + other.latency_s
        return RoutedAlgorithm(name, sent_s, latency_s, link, self.half_s + other.half_s, (*self.loads, *other.loads))


class GroupRoutes(Protocol):
    """The paths of one group's collectives through a machine that is described as a graph of links."""

    @property
    def outside(self) -> int:
        """Number of nodes that the group spans."""

    @property
    def call_s(self) -> float:
        """Seconds of framework overhead per call over this group."""

    def algorithms(self, op: NetworkOp) -> tuple[RoutedAlgorithm, ...]:
        """Return every algorithm for `op` over the group; none for a group of one device."""


@dataclass(frozen=True, slots=True)
class DeviceGroup:
    """A group of `size` devices and the levels it spans, innermost first."""

    size: int
    levels: tuple[GroupLevel, ...]
    level: str
    """The outermost level it spans; for a group of one, the innermost level of the machine."""
    routes: GroupRoutes | None = None
    """The routes of its collectives over a graph of links; None if the closed forms apply."""

    @property
    def inside(self) -> float:
        """Number of members in one node (or one slice of a torus); the mean if it varies.

        >>> node.inside, node.outside, nodes.inside, nodes.outside
        (8, 1, 8, 4)
        """
        if self.routes is not None:
            return self.size / self.routes.outside
        return prod(p.members for p in self.levels if not p.network)

    @property
    def outside(self) -> float:
        """Number of nodes (or slices) that the group spans."""
        if self.routes is not None:
            return self.routes.outside
        return prod(p.members for p in self.levels if p.network)

    @property
    def call_s(self) -> float:
        """Seconds of framework overhead per call over this group: the largest of its levels'."""
        return max((p.call_s for p in self.levels), default=0.0)

    def efficiency(self, op: str) -> float:
        """Return the share of the modelled bandwidth that `op` achieves, by the outermost level that gives one; else
        1."""
        return next((share for p in reversed(self.levels) for name, share in p.op_efficiency if name == op), 1.0)

    @property
    def slowest(self) -> GroupLevel | None:
        """The level that limits a gather; None for a group of one device."""
        return max(self.levels, key=lambda p: (1 - 1 / p.members) / p.unit_bytes_per_s, default=None)


def tower_group(mesh: Mesh, cluster: Cluster, axes: tuple[str, ...]) -> DeviceGroup:
    """Return the group of devices along `axes`, in closed form, with its levels of a tree or torus, innermost first.

    Args:
        mesh: the mesh, whose innermost axis fills a node first.
        cluster: the machine.
        axes: axes of the mesh, or of one of its views (other factorizations of some mesh axes).

    >>> group = tower_group(plan.mesh, plan.cluster, ("fsdp", "tp"))  # mesh pp 4 > fsdp 16 > tp 8, nodes of 8
    >>> group.size, group.level, [(p.name, p.members) for p in group.levels]
    (128, 'leaf', [('nvlink4', 8.0), ('leaf', 16.0)])
    """
    used = tuple(mesh.axis(a) for a in axes if mesh.axis(a).size > 1)
    size = prod(a.size for a in used)
    levels, count = [], float(size)
    for unit, width in _units(cluster, mesh.devices):
        left = float(_units_of_group(used, width, mesh.devices)) if width < mesh.devices else 1.0
        if left < count:
            levels.append(_between_pairs(replace(unit, members=count / left, below=size / count), cluster))
        count = left
    levels = [_on_torus(p, _rings(mesh, cluster, axes)) if p.rings else p for p in levels]
    return DeviceGroup(size, tuple(levels), levels[-1].name if levels else cluster.link.name)


def _between_pairs(level: GroupLevel, cluster: Cluster) -> GroupLevel:
    """Return `level` with the links that join its own members, if every link of a chip of `cluster` ends at another
    chip: of eight chips with seven links each, a group of two uses one."""
    if not cluster.link.links or level.name != cluster.link.name:
        return level
    links = max(1.0, level.members - 1)
    return replace(level, bytes_per_s=level.bytes_per_s * links / cluster.links_of_chip, links=links)


def ring_group(ring: Ring, link_bytes_per_s: float, latency_s: float = 0.0) -> DeviceGroup:
    """Return the group of one torus dim, `ring`, with `link_bytes_per_s` in each direction and `latency_s` per hop.

    >>> ring_group(Ring(4, wrapped=True), link_bytes_per_s=50e9).levels[0].bytes_per_s  # both ways round
    100000000000.0
    """
    level = GroupLevel("ring", ring.size, 1, link_bytes_per_s, latency_s, rings=(ring,))
    return DeviceGroup(ring.size, (_on_torus(level, (ring,)),), "ring")


def units_crossed(axis: Axis, width: int, devices: int) -> int:
    """Return the number of units (nodes, say) of `width` consecutive ranks that the worst group along `axis` touches.

    A group lies within `size * stride` consecutive ranks, of `devices` in all. If that does not divide `width`, some
    group straddles a boundary.

    >>> from planc.ir.mesh import Axis
    >>> units_crossed(Axis(name="tp", size=8, stride=1), 8, 64), units_crossed(Axis(name="tp", size=6, stride=1), 8, 48)
    (1, 2)
    """
    extent = axis.size * axis.stride
    offset = 0 if extent >= devices else width - gcd(extent, width)
    return min(axis.size, (offset + extent - 1) // width + 1)


def _units_of_group(used: tuple[Axis, ...], width: int, devices: int) -> int:
    return prod(units_crossed(a, width, devices) for a in _merged(used))


def _merged(used: tuple[Axis, ...]) -> list[Axis]:
    """Return the axes `used`, innermost first; adjacent axes are merged into one."""
    merged: list[Axis] = []
    for axis in sorted(used, key=lambda a: a.stride):
        last = merged[-1] if merged else None
        if last and axis.stride == last.stride * last.size:
            merged[-1] = replace(last, size=last.size * axis.size)
        else:
            merged.append(axis)
    return merged


def _units(cluster: Cluster, devices: int) -> list[tuple[GroupLevel, int]]:
    """Return each level of the machine, innermost first, with the number of devices that it connects: those of a chip,
    of a node, or under one switch. Both `members` and `below` are set later."""
    chip, link = cluster.chip, cluster.link
    found: list[tuple[GroupLevel, int]] = []
    if chip.devices > 1:
        found.append((GroupLevel(chip.name, 1, 1, chip.die_bandwidth_bytes_per_s, 0.0), chip.devices))
    one = link.bandwidth_bytes_per_s * link.efficiency / link.shared / chip.devices
    near = GroupLevel(
        link.name,
        1,
        1,
        one,
        link.latency_s,
        link.half_bytes,
        link.call_s,
        (*link.op_efficiency.items(),),
        _reduction(link.in_network_reduction, prod(cluster.shape)),
        (Ring(1, False),) if cluster.is_torus else (),
        tables=link.tables,
        declared_bytes_per_s=link.bandwidth_bytes_per_s,
    )
    found.append((near, cluster.devices_per_node))
    nodes = 1
    for i, level in enumerate(cluster.levels):
        nodes *= level.width
        last = i == len(cluster.levels) - 1
        found.append(
            (_network_level(cluster, level, devices), max(devices, 1) if last else nodes * cluster.devices_per_node)
        )
    return found


def _network_level(cluster: Cluster, level: Level, devices: int) -> GroupLevel:
    """Return a level of the network. All devices of a node send at once, and share the uplinks of the node's hosts."""
    egress = cluster.hosts_per_node * level.bandwidth_bytes_per_s * level.efficiency / level.oversubscription
    each = egress / min(cluster.devices_per_node, devices)
    reduction = _reduction(level.in_network_reduction, inf)
    return GroupLevel(
        name=level.name, members=1, below=1, bytes_per_s=each, latency_s=level.latency_s, half_bytes=level.half_bytes,
        call_s=level.call_s, op_efficiency=(*level.op_efficiency.items(),), reduction=reduction, network=True,
        message_bytes_per_s=level.bandwidth_bytes_per_s * level.efficiency / level.oversubscription / level.rails,
        hosts=cluster.hosts_per_node, tables=level.tables, declared_bytes_per_s=level.bandwidth_bytes_per_s,
    )  # fmt: skip


def _reduction(gain: float, units: float) -> float:
    """Return the bytes all-reduced per byte that a unit sends, from the `gain` over a ring of all `units`; 0 without.

    The switches receive the buffer once from each unit, for any number of them; a ring of n sends 2 (n - 1) / n of it.
    Eight H200 all-reduce 270 GB/s in their switches and five 259 GB/s, while the ring's bus bandwidth stays at 365 GB/s
    (public ml-engineering notes, network).
    """
    return 0.0 if gain <= 1 or units < 2 else gain / (2 * (1 - 1 / units))


# Tori.


def _on_torus(level: GroupLevel, rings: tuple[Ring, ...]) -> GroupLevel:
    """Return `level` with torus `rings`, all of which a gather uses at once. A group on no dim counts as one line."""
    rings = rings or (Ring(max(2, round(level.members)), False),)
    return replace(level, rings=rings, bytes_per_s=level.bytes_per_s * sum(r.links for r in rings))


def _rings(mesh: Mesh, cluster: Cluster, axes: tuple[str, ...]) -> tuple[Ring, ...]:
    """Return the torus rings of a group over `axes`, one for each torus dim: several axes on one dim form one ring."""
    placed = torus_dims(mesh, cluster, axes)
    by_dim: dict[int, Ring] = {}
    for axis in axes:
        for dim, ring in placed.get(axis, ()):
            other = by_dim.get(dim)
            by_dim[dim] = _joined_rings(ring, other, cluster, dim) if other else ring
    return tuple(by_dim.values())


def _joined_rings(one: Ring, other: Ring, cluster: Cluster, dim: int) -> Ring:
    size = one.size * other.size
    return Ring(size, cluster.wrap[dim] and size == cluster.shape[dim], min(one.stride, other.stride))


def torus_dims(mesh: Mesh, cluster: Cluster, axes: tuple[str, ...] = ()) -> dict[str, tuple[tuple[int, Ring], ...]]:
    """Return, for each axis, the torus dims that it uses: the index of each dim, and the axis's ring on it.

    Innermost axes are placed first. An axis takes whole dims if their lengths multiply to its size. Otherwise it takes
    parts of longer dims: the inner part of a dim is a line, the outer part a ring whose links several groups share.

    Args:
        mesh: the mesh whose axes are placed.
        cluster: the torus: the lengths of its dims, and which of them wrap around.
        axes: axes of a view (another factorization of some mesh axes). The view's axes are placed instead of the mesh
            axes that it replaces.

    >>> from planc.ir.mesh import Mesh
    >>> placed = torus_dims(Mesh.of({"fsdp": 4, "tp": 4}, torus.cause), torus)
    >>> {axis: [(dim, ring.size) for dim, ring in rings] for axis, rings in placed.items()}
    {'tp': [(0, 4)], 'fsdp': [(1, 4)]}
    """
    free = [
        _FreeDimension(i, n, n, wrapped) for i, (n, wrapped) in enumerate(zip(cluster.shape, cluster.wrap, strict=True))
    ]
    free.sort(key=lambda f: f.left)
    placed: dict[str, tuple[tuple[int, Ring], ...]] = {}
    for axis in _inner_first(mesh, axes):
        size = _in_slice(axis, cluster)
        chosen = _whole_dimensions(free, size) if size > 1 else []
        for dim in chosen:
            free.remove(dim)
        taken = [(d.dim, d.take(d.left)) for d in chosen] if chosen else _rings_of_size(free, size)
        placed[axis.name] = tuple(taken)
    return placed


@dataclass
class _FreeDimension:
    """The part of a torus dim that no axis uses yet."""

    dim: int
    length: int
    left: int
    wrapped: bool

    def take(self, size: int) -> Ring:
        """Assign the next `size` members, and return their ring. It wraps around only if it completes the dim."""
        inner = self.length // self.left
        self.left //= size
        return Ring(size, self.wrapped and self.left == 1, inner)


def _inner_first(mesh: Mesh, axes: tuple[str, ...]) -> list[Axis]:
    """Return the axes that make up the ranks, innermost first. If `axes` names an axis of a view, the view's axes take
    the place of the mesh axes that the view replaces."""
    view = next((v for v in mesh.views if set(axes) & set(v.names)), None)
    kept = [a for a in mesh.axes if view is None or a.name not in view.of]
    return sorted([*kept, *(view.axes if view else ())], key=lambda a: (a.stride, a.size))


def _in_slice(axis: Axis, cluster: Cluster) -> int:
    """Return the number of chips along `axis` within one slice."""
    room = cluster.devices_per_node
    if axis.stride >= room:
        return 1
    members = min(axis.size, room // axis.stride)
    return max(1, members // max(1, cluster.chip.devices // axis.stride))


def _whole_dimensions(free: list[_FreeDimension], size: int) -> list[_FreeDimension]:
    """Return the fewest whole dims of `free` whose lengths multiply to `size`; [] if there are none."""
    from itertools import combinations

    for count in range(1, len(free) + 1):
        for chosen in combinations(free, count):
            if prod(f.left for f in chosen) == size:
                return list(chosen)
    return []


def _rings_of_size(free: list[_FreeDimension], size: int) -> list[tuple[int, Ring]]:
    """Assign `size` members to parts of the `free` dims, the shortest first. Return each dim's index and ring."""
    used: list[tuple[int, Ring]] = []
    for dim in list(free):
        if size <= 1:
            break
        part = gcd(size, dim.left)
        if part > 1:
            used.append((dim.dim, dim.take(part)))
            size //= part
    free[:] = [f for f in free if f.left > 1]
    return used


# Facts about the machine itself.


def at_peak(cluster: Cluster, *, latency: bool = False) -> Cluster:
    """Return the machine at its data-sheet rates: efficiencies 1, no launches and, without `latency`, no latencies.

    Args:
        cluster: the machine as its hardware file describes it.
        latency: keeps the latencies of its links and network.

    >>> measured = replace(h100_node, chip=replace(h100_node.chip, matmul_efficiency=0.6))
    >>> at_peak(measured).chip.matmul_efficiency
    1.0
    """
    keep = float(latency)
    ideal: dict[str, Any] = {"efficiency": 1.0, "half_bytes": 0.0, "call_s": 0.0, "op_efficiency": {}, "tables": ()}
    link = replace(cluster.link, latency_s=keep * cluster.link.latency_s, **ideal)
    chip = replace(
        cluster.chip,
        matmul_efficiency=1.0,
        attention_efficiency=1.0,
        memory_efficiency=1.0,
        launch_s=0.0,
        narrow_efficiency={},
        te_speed=1.0,
        xla_speed=1.0,
        torch_2_1_speed=1.0,
        dispatch_s=0.0,
        matmul_depth=0.0,
        matmul_tail=0.0,
        contention=0.0,
        step_s=0.0,
        tables=(),
    )
    levels = tuple(replace(v, latency_s=keep * v.latency_s, **ideal) for v in cluster.levels)
    return replace(cluster, chip=chip, link=link, levels=levels)


def injection_bytes_per_s(cluster: Cluster, level: str) -> float:
    """Return the bytes per second that all units of one `level` of `cluster` can send at once, in one direction.

    Units of the innermost level are the chips of a node. Units of a network level are the nodes below it, of which the
    cluster may have only some. Raises ValueError for a level that the cluster does not have.

    >>> injection_bytes_per_s(h100_node, h100_node.link.name) / 1e12  # 8 x 450 GB/s
    3.6
    """
    if level == cluster.link.name:
        return prod(cluster.shape) * cluster.link.bandwidth_bytes_per_s
    nodes = 1
    for one in cluster.levels:
        nodes *= one.width
        if one.name == level:
            there = min(nodes, cluster.count)
            return there * cluster.hosts_per_node * one.bandwidth_bytes_per_s / one.oversubscription
    raise ValueError(f"{cluster.name} has no level {level}")


def bisection_bytes_per_s(cluster: Cluster, level: str) -> float:
    """Return the bisection bandwidth (bytes/s) of one `level` of `cluster`, both directions together.

    Raises ValueError for a level that the cluster does not have.

    >>> bisection_bytes_per_s(h100_node, h100_node.link.name) / 1e12
    3.6
    """
    half = injection_bytes_per_s(cluster, level) / 2
    if cluster.link.links and level == cluster.link.name:  # of a chip's links, those to the other half of its node
        half *= prod(cluster.shape) / 2 / cluster.links_of_chip
    return half + half


def switches(cluster: Cluster) -> int:
    """Return the number of switches in `cluster`: those inside nodes, and a folded Clos with the network's levels.

    Half of a switch's ports go up, except at the top. Source: public scaling book, gpus.md.

    >>> switches(plan.cluster)
    280
    """
    total = cluster.count * cluster.link.switches
    links = cluster.levels[0].rails
    units = cluster.count * cluster.hosts_per_node
    for i, level in enumerate(cluster.levels):
        down = level.ports // 2
        if i == len(cluster.levels) - 1:
            return total + ceil(units * links / level.ports)
        groups = ceil(units / level.width)
        each = min(units, level.width)
        total += groups * ceil(each * links / down)
        links, units = ceil(each * links / level.oversubscription), groups
    return total


def replicas(mesh: Mesh, axes: tuple[str, ...]) -> int:
    """Return the number of replicas in `mesh` of an array that is sharded over `axes`.

    >>> replicas(plan.mesh, ("tp",))  # mesh pp 4 > fsdp 16 > tp 8
    64
    """
    return mesh.devices // mesh.size(*axes)
