"""Seconds of a transfer of weights from a trainer to a generator, beside a lower bound and the way without a plan.

Links inside nodes and the network are busy at the same time, because buckets follow each other. Bytes are those that
each rank sends and receives; a node's ranks share its uplinks. On a torus, and on a machine that is described as a
graph of links, bytes inside a slice or node cost as much as in an all-to-all, since its pairs are arbitrary.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from planc.costing.machine.collective_time import transfer_s
from planc.costing.machine.group import device_group
from planc.costing.machine.topology import DeviceGroup
from planc.diag.fast_dataclass import dataclass
from planc.ir.hardware import Cluster
from planc.ir.mesh import Mesh
from planc.ir.serve_report import SyncTime
from planc.sharding.transfer_core import RankRange
from planc.sharding.transfers import WeightTransfer

BUCKET_BYTES = 2**26
"""Bytes that a rank receives at a time."""


@dataclass(frozen=True)
class _Links:
    """The links of one side's machine. `count` is its number of nodes, at least two where bytes cross the network."""

    cluster: Cluster
    count: int

    @cached_property
    def node(self) -> DeviceGroup:
        """The devices of one node or slice."""
        return self._group(1)

    @cached_property
    def all(self) -> DeviceGroup:
        """The devices of all nodes."""
        return self._group(self.count)

    def _group(self, count: int) -> DeviceGroup:
        cluster = self.cluster if count == self.cluster.count else replace(self.cluster, count=count)
        mesh = Mesh.of({"ranks": count * self.cluster.devices_per_node}, self.cluster.cause)
        return device_group(mesh, cluster, ("ranks",))

    def near_s(self, rank_bytes: float) -> float:
        """Return the seconds in which a rank sends `rank_bytes` to others of its node."""
        group = self.node
        if not rank_bytes or group.size == 1:  # alone in its node, a rank receives over the network only
            return 0.0
        if group.routes is None and not any(level.rings for level in group.levels):
            return rank_bytes / min(level.bytes_per_s for level in group.levels)
        everyone = rank_bytes * group.size / (group.size - 1)
        return transfer_s("all_to_all", everyone, group) - transfer_s("all_to_all", 0.0, group)

    def far_s(self, node_bytes: float, rank_bytes: float) -> float:
        """Return the seconds in which a node sends `node_bytes`, of which one rank sends `rank_bytes`."""
        if not node_bytes:
            return 0.0
        if self.all.routes is None:
            level = min((p for p in self.all.levels if p.network), key=lambda p: p.bytes_per_s)
            shared = level.bytes_per_s * self.cluster.devices_per_node
            return max(node_bytes / shared, rank_bytes / level.message_bytes_per_s)
        whole, each = self.cluster.devices_per_node, node_bytes / self.cluster.devices_per_node
        everyone = each * self.all.size / (self.all.size - whole)
        return transfer_s("all_to_all", everyone, self.all) - transfer_s("all_to_all", 0.0, self.all)

    def name(self, *, far: bool) -> str:
        """Return the name of the level that limits bytes inside a node, or those between nodes."""
        levels = [p for p in self.all.levels if p.network == far] or list(self.all.levels)
        return min(levels, key=lambda p: p.bytes_per_s).name if levels else self.cluster.link.name


def sync_time(
    transfer: WeightTransfer,
    clusters: tuple[Cluster, Cluster],
    *,
    share: float = 1.0,
    bucket_bytes: float = BUCKET_BYTES,
) -> SyncTime:
    """Return the seconds of a `transfer` between two `clusters`, the trainer's and the generator's.

    Args:
        transfer: the bytes that ranks send and receive.
        clusters: the machines; the same one twice if the generator is on the trainer's devices.
        share: the share of the bytes that is sent, below 1 if only what changed is.
        bucket_bytes: bytes that a rank receives at a time.
    """
    apart = transfer.sides[1].first > 0
    links = [_Links(c, max(s.devices // s.per_node, 1 + apart)) for c, s in zip(clusters, transfer.sides, strict=True)]
    busy = [_Busy.of(transfer, link, side, share) for link, side in zip(links, transfer.sides, strict=True)]
    near, far = (max(busy, key=lambda one: one.near_s), max(busy, key=lambda one: one.far_s))
    busy_s = max(near.near_s, far.far_s)
    staging = share * max((load.near_in + load.far_in for load in transfer.loads.values()), default=0.0)
    limited_by_network = far.far_s > near.near_s
    start_s = _start_s(busy_s, staging, bucket_bytes, transfer, links) if busy_s else 0.0
    return SyncTime(
        seconds=busy_s + start_s,
        near_s=near.near_s,
        far_s=far.far_s,
        start_s=start_s,
        busiest=far.links.name(far=True) if limited_by_network else near.links.name(far=False),
        busiest_bytes=far.node_bytes if limited_by_network else near.rank_bytes,
        bound_s=_bound_s(transfer, links, share),
        gathered_s=_gathered_s(transfer, links),
        staging_bytes=staging,
    )


@dataclass(frozen=True, kw_only=True)
class _Busy:
    """The busiest links of one side."""

    links: _Links
    rank_bytes: float
    """The most bytes that one rank sends or receives inside its node."""
    node_bytes: float
    """The most bytes that one node sends to others, or receives."""
    near_s: float
    far_s: float

    @classmethod
    def of(cls, transfer: WeightTransfer, links: _Links, side: RankRange, share: float) -> _Busy:
        """Return the busiest links of `side` if `share` of the bytes is sent."""
        loads = {r: load for r, load in transfer.loads.items() if side.first <= r < side.first + side.devices}
        nodes: dict[int, tuple[float, float]] = {}
        for rank, load in loads.items():
            sent, received = nodes.get(side.node(rank), (0.0, 0.0))
            nodes[side.node(rank)] = (sent + load.far_out, received + load.far_in)
        near = share * max((max(load.near_in, load.near_out) for load in loads.values()), default=0.0)
        far = share * max((max(load.far_in, load.far_out) for load in loads.values()), default=0.0)
        node = share * max(map(max, nodes.values()), default=0.0)
        return cls(
            links=links,
            rank_bytes=near,
            node_bytes=node,
            near_s=links.near_s(near),
            far_s=links.far_s(node, far),
        )


def _bound_s(transfer: WeightTransfer, links: list[_Links], share: float) -> float:
    """Return the most seconds of: a node that receives what it lacks once, over all its uplinks; a rank that receives
    what it lacks over all its links at once; a trainer apart that sends, from all its nodes, what it sends."""
    missing_ranks = share * max(transfer.missing_of_node.values(), default=0.0)
    of_node_s = links[1].far_s(missing_ranks, 0.0)
    missing = share * max(transfer.missing.values(), default=0.0)
    near_s = links[1].near_s(missing)
    of_rank_s = 1 / (1 / near_s + 1 / links[1].far_s(missing, missing)) if missing_ranks and near_s else near_s
    if not transfer.sides[1].first:
        return max(of_node_s, of_rank_s)
    sent = share * sum(load.far_out for rank, load in transfer.loads.items() if rank < transfer.sides[1].first)
    return max(of_node_s, of_rank_s, links[0].far_s(sent * transfer.sides[0].per_node / transfer.sides[0].devices, 0.0))


def _start_s(
    busy_s: float, rank_bytes: float, bucket_bytes: float, transfer: WeightTransfer, links: list[_Links]
) -> float:
    """Return the seconds beside `busy_s`, those of the busiest link: each bucket's latency and launch, and, at the end,
    the further hops of the last one's bytes that nodes pass on."""
    buckets = max(1.0, -(-rank_bytes // bucket_bytes))
    tick_s = max(sum(level.latency_s for level in link.all.levels) + link.all.call_s for link in links)
    further = transfer.deepest - 1
    return busy_s / buckets * _passed_on(transfer) * further + tick_s * (buckets + further)


def _passed_on(transfer: WeightTransfer) -> float:
    """Return the share of the bytes from the network that the generator's nodes pass on to others; 1 if trainer and
    generator share their nodes, since it is not known then."""
    first = transfer.sides[1].first
    loads = [load for rank, load in transfer.loads.items() if rank >= first]
    received = sum(load.far_in for load in loads)
    return sum(load.far_out for load in loads) / received if first and received else 1.0


def _gathered_s(transfer: WeightTransfer, links: list[_Links]) -> float:
    """Return the seconds in which every rank of the trainer gathers the model, and rank 0 broadcasts it if the
    generator is apart: what a trainer does without a plan (`full_tensor`, then `broadcast`)."""
    size, side = transfer.model_bytes, transfer.sides[0]
    group = links[0].all if side.devices > side.per_node else links[0].node
    gathered_s = transfer_s("all_gather", size, group) if side.devices > 1 else 0.0
    return gathered_s + (links[0].far_s(size, size) if transfer.sides[1].first else 0.0)
