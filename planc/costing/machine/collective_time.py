"""Seconds of one collective over a group, from its bytes and the network levels that the group crosses.

A buffer has B bytes, a group n members, and a unit (what a level connects, say a node) m of them:

    gather, scatter   ring: B (n - 1) / n leave a unit over the uplinks of its m members, at all levels at once
                      hierarchical: a ring in each node, then one over the nodes: fewer messages, two phases
                      tree: log2 (nodes) messages in sequence, but at a small message's share of the bandwidth
    all-reduce        a scatter and a gather; or B up a tree and down again; or once through switches that add
    all to all        each member sends B (n - m) / n out of its unit; on a torus, the busiest link counts
    send, broadcast   B once

The fastest of these counts, since libraries choose by size. Sources: Thakur, Rabenseifner and Gropp 2005;
Chan et al. 2007 for tori and hierarchies; the public scaling book, gpus.md and sharding.md, for the tree of
levels; NCCL's own model (src/graph/tuning.cc) for the latencies of rings and trees.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import combinations
from math import log2, prod
from operator import itemgetter

from planc.costing.machine.op_tables import table_s
from planc.costing.machine.topology import DeviceGroup, GroupLevel, Ring
from planc.ir.collective import NetworkOp
from planc.ir.op_tables import OpTable

PASSES: dict[NetworkOp, int] = {
    "all_gather": 1,
    "reduce_scatter": 1,
    "all_reduce": 2,
    "all_to_all": 1,
    "send_recv": 1,
    "broadcast": 1,
}
"""Number of times that the buffer crosses the slowest cut: an all-reduce scatters and gathers."""

SLOWEST_SHARE = 0.25
"""Small messages use a protocol with a flag in every word, at a quarter of the bandwidth (NCCL's LL)."""

LARGE_BYTES = 2.0**30


def collective_s(op: NetworkOp, buffer_bytes: float, group: DeviceGroup) -> float:
    """Return the seconds of one call of a collective, with the launch by the framework.

    Args:
        op: the collective, such as `all_gather`.
        buffer_bytes: the larger of a call's input and output on one device.
        group: the network levels that the group crosses (`device_group`).

    >>> collective_s("all_gather", 3.6e9, node)  # 7 ms of bytes and 7 hops
    0.007007
    """
    return transfer_s(op, buffer_bytes, group) + group.call_s


def transfer_s(op: NetworkOp, buffer_bytes: float, group: DeviceGroup) -> float:
    """Return the seconds of one call on the links, without the launch: by measured rates if the hardware file has any.

    `buffer_bytes` is the larger of input and output on one device; `group` holds the levels that the group crosses.

    >>> transfer_s("all_gather", 4e9, ring), transfer_s("all_reduce", 4e9, ring)  # 4 devices, 100 GB/s each
    (0.03, 0.06)
    """
    table = collective_table(op, group)
    if table is None or buffer_bytes <= 0:
        return _curve_s(op, buffer_bytes, group)
    return table_s(
        table,
        (buffer_bytes,),
        work=lambda sizes: sizes[0],
        curve_s=lambda sizes: _curve_s(op, sizes[0], group),
        units_per_s=group.levels[0].declared_bytes_per_s,
        capped=False,
    )


def latency_of_call_s(op: NetworkOp, buffer_bytes: float, group: DeviceGroup) -> float:
    """Return the seconds of `transfer_s` that do not depend on the bytes: the hops of its algorithm. A table of
    measured rates has none.

    >>> latency_of_call_s("all_gather", 3.6e9, node)  # 7 hops of 1 us
    7e-06
    """
    if collective_table(op, group) is not None:
        return 0.0
    return dict(_algorithms(op, 0.0, group))[algorithm(op, group, buffer_bytes)] / group.efficiency(op)


def collective_table(op: NetworkOp, group: DeviceGroup) -> OpTable | None:
    """Return the table of measured rates for `op` over `group`; None if there is none and the formulas apply.

    A table is for one network level and one number of members. It was measured on adjacent groups that all ran at once,
    so it does not apply to groups on a torus whose rings share links.

    >>> collective_table("all_reduce", node) is None  # no file has one
    True
    """
    if len(group.levels) != 1 or not group.levels[0].tables:
        return None
    (level,) = group.levels
    if group.routes is not None or any(ring.stride > 1 for ring in level.rings):
        return None
    return next((t for t in level.tables if t.op == op and t.members == group.size), None)


def _curve_s(op: NetworkOp, buffer_bytes: float, group: DeviceGroup) -> float:
    """Return the seconds of one call by the formulas, without a table of measured rates."""
    return _fastest(op, buffer_bytes, group)[1] / group.efficiency(op)


def algorithm(op: NetworkOp, group: DeviceGroup, buffer_bytes: float = LARGE_BYTES) -> str:
    """Return the name of the algorithm that a collective is assumed to use: the fastest for this size.

    `op` is the collective, `buffer_bytes` the larger of its input and output on a device. A `group` of one runs `none`.

    >>> [algorithm("all_reduce", nodes, size) for size in (1e3, 1e9)]
    ['tree', 'ring']
    """
    return _fastest(op, buffer_bytes, group)[0]


def _fastest(op: NetworkOp, buffer_bytes: float, group: DeviceGroup) -> tuple[str, float]:
    """Return the name and seconds of the fastest algorithm, the first of equal ones; ("none", 0.0) for one device."""
    return min(_algorithms(op, buffer_bytes, group), key=itemgetter(1), default=("none", 0.0))


def limit_s(op: NetworkOp, buffer_bytes: float, group: DeviceGroup) -> float:
    """Return the seconds of `op` over `group` without latency and with (n - 1) / n taken as 1 (many members).

    `buffer_bytes` is the larger of input and output on one device; only the slowest level counts. In an all-to-all each
    member sends different data, so the members of a unit share its uplinks; on a torus the data takes several hops.
    Source: public scaling book, gpus.md, takeaway "2 B / W".

    >>> limit_s("all_reduce", 4e9, ring)
    0.08
    """
    if op == "all_to_all":
        return max((_sent_to_all_s(buffer_bytes, p, group) for p in group.levels), default=0.0)
    slowest = min((p.unit_bytes_per_s for p in group.levels), default=float("inf"))
    return PASSES[op] * buffer_bytes / slowest


def bound_s(buffer_bytes: float, group: DeviceGroup) -> float:
    """Return a lower bound on the seconds of an all-gather of `buffer_bytes` over `group`, for any algorithm.

    Each of the D units that a level connects (say nodes) receives the (D - 1) / D of the buffer that it lacks, at all
    levels at once. Source: public scaling book, gpus.md, for a tree of switches.

    >>> f"{bound_s(4e9, ring) * 1e3:.0f} ms"
    '30 ms'
    """
    return max((buffer_bytes / gather_bytes_per_s(p) for p in group.levels), default=0.0)


def gather_bytes_per_s(level: GroupLevel) -> float:
    """Return the bytes of buffer that D units (say nodes) all-gather per second at `level`: a unit's bandwidth times D
    / (D - 1), since each unit already has 1 / D of the buffer.

    Source: public scaling book, gpus.md, quiz 4 question 5, whose answer this is:

    >>> from planc.costing.machine.topology import GroupLevel
    >>> gather_bytes_per_s(GroupLevel("leaf", members=2, below=8, bytes_per_s=50e9, latency_s=0.0))
    800000000000.0
    """
    return level.unit_bytes_per_s * level.members / (level.members - 1)


def ring_share(op: NetworkOp, members: int) -> float:
    """Return the share of the buffer that each of a ring's `members` sends in `op`: (n - 1) / n, twice in an
    all-reduce.

    Source: Thakur, Rabenseifner and Gropp 2005.

    >>> ring_share("all_reduce", 8), ring_share("all_gather", 8)
    (1.75, 0.875)
    """
    return 1.0 if op in ("send_recv", "broadcast") else PASSES[op] * (members - 1) / members


def peers_hit(members: int, choices: int) -> float:
    """Return the expected share of a group's `members` to which a device sends a token that chooses `choices` experts.

    A token goes once to each other member that has at least one of its experts. With random choices, a member has none
    of them with probability ((n - 1) / n) ** choices. Source: public scaling book, gpus.md, appendix B.

    >>> peers_hit(members=4, choices=2)  # (1 - (3/4)^2) x 3/4
    0.328125
    """
    away = (members - 1) / members
    return (1 - away**choices) * away


def ragged_all_to_all_s(token_bytes: float, choices: int, group: DeviceGroup) -> float:
    """Return the seconds to send each token once to every other member of `group` that has one of its experts.

    `token_bytes` is the size of one device's tokens, `choices` the number of experts per token. 0 for one device.

    >>> ragged_all_to_all_s(1e9, 2, ring)
    0.0175
    """
    n = group.size
    return collective_s("all_to_all", token_bytes * n * peers_hit(n, choices) / (1 - 1 / n), group) if n > 1 else 0.0


def latency_s(group: DeviceGroup) -> float:
    """Return the latency (s) of the smallest collective over `group`: hops inside a node or slice, a tree over nodes.

    >>> f"{latency_s(nodes) * 1e6:.0f} us"  # 7 hops of 1 us inside, log2(4) of 5 us outside
    '17 us'
    """
    near = sum(_hops(p) * p.latency_s for p in group.levels if not p.network)
    return near + _tree_latency_s([p for p in group.levels if p.network])


# The ways to run a collective, each with its seconds.


def _algorithms(op: NetworkOp, buffer_bytes: float, group: DeviceGroup) -> Iterator[tuple[str, float]]:
    if group.routes is not None:
        yield from ((way.name, way.seconds(buffer_bytes)) for way in group.routes.algorithms(op))
        return
    if not group.levels:
        return
    if op in ("send_recv", "broadcast"):
        name = "point to point" if op == "send_recv" else "tree"
        yield name, _once_s(op, buffer_bytes, group)
    elif op == "all_to_all":
        yield "all to all", max(_exchange_s(buffer_bytes, p, group) for p in group.levels) + latency_s(group)
    else:
        yield from ((name, PASSES[op] * once_s) for name, once_s in _rings(buffer_bytes, group))
        yield from _all_reduces(buffer_bytes, group) if op == "all_reduce" else _gather_trees(buffer_bytes, group)


def _rings(buffer_bytes: float, group: DeviceGroup) -> Iterator[tuple[str, float]]:
    """Yield the name and seconds of a ring gather or scatter (an all-reduce runs both): one ring through all members,
    or one in each node and one between nodes."""
    far = _far(group)
    if len(group.levels) == 1 or not any(p.rings for p in _near(group)):
        ring_s = max(_part_s(buffer_bytes * _stays(p, group), p, group.size) for p in group.levels)
        yield _ring_name(group), ring_s + _ring_latency_s(group.levels)
    if _near(group) and len(group.levels) > 1:
        nodes_s = max((_part_s(buffer_bytes, p, group.outside) for p in far), default=0.0)
        yield "hierarchical", _inside_s(buffer_bytes, group) + nodes_s + _ring_latency_s(far)


def _gather_trees(buffer_bytes: float, group: DeviceGroup) -> Iterator[tuple[str, float]]:
    """Yield the name and seconds of a gather or scatter along a tree of nodes, the fastest for small messages."""
    if far := _far(group):
        slow_s = max(_part_s(buffer_bytes, p, group.outside) for p in far) / SLOWEST_SHARE
        yield "tree", _inside_s(buffer_bytes, group) + slow_s + _tree_latency_s(far)


def _all_reduces(buffer_bytes: float, group: DeviceGroup) -> Iterator[tuple[str, float]]:
    """Yield the name and seconds of a tree all-reduce and, if the switches can add, of an in-network reduction."""
    if _far(group):
        far = 0.5 if group.outside == 2 else 1.0  # of two nodes each is the root of one of the two trees
        near = 1 - (1 - far) / group.inside
        shares = [(far if p.network else min(near, _stays(p, group)), p) for p in group.levels]
        up = (_move_s(buffer_bytes * share / p.below, p) for share, p in shares)
        up_s = max(up) + latency_s(group)
        yield "tree", PASSES["all_reduce"] * up_s
    if any(p.reduction for p in group.levels):
        yield "in-network reduction", _reduced_s(buffer_bytes, group)


def _near(group: DeviceGroup) -> list[GroupLevel]:
    """Return the levels of `group` inside a node or a slice."""
    return [p for p in group.levels if not p.network]


def _far(group: DeviceGroup) -> list[GroupLevel]:
    """Return the levels of `group` in the network between nodes or slices."""
    return [p for p in group.levels if p.network]


def _inside_s(buffer_bytes: float, group: DeviceGroup) -> float:
    """Return the seconds of a gather or scatter inside each node, latency included. Its levels run in sequence."""
    return sum(_part_s(buffer_bytes, p, p.members) + _hops(p) * p.latency_s for p in _near(group))


def _part_s(buffer_bytes: float, level: GroupLevel, members: float) -> float:
    """Return the seconds of a ring gather or scatter of (n - 1) / n of the buffer at one level, without latency."""
    moved = buffer_bytes * (1 - 1 / members) / level.below
    return _move_s(moved * imbalance(level.rings) if len(level.rings) > 1 else moved, level)


@lru_cache(maxsize=1024)
def imbalance(rings: tuple[Ring, ...]) -> float:
    """Return the seconds of a gather over several torus `rings`, divided by the seconds if no ring were ever idle.

    Parts of the buffer traverse the dims in different orders. In every order, dims of n members together carry at least
    the shares of n - 1 members. The fast links of a short ring therefore cannot relieve a long, slow ring enough.

    >>> from planc.costing.machine.topology import Ring
    >>> imbalance((Ring(4, wrapped=True), Ring(8, wrapped=True)))
    1.0
    >>> imbalance((Ring(2, wrapped=False), Ring(2, wrapped=False, stride=8)))  # 1/4 of the buffer at 1/8 of a link
    3.0
    """
    whole = prod(r.size for r in rings)
    subsets = (part for count in range(1, len(rings) + 1) for part in combinations(rings, count))
    slowest = max((prod(r.size for r in part) - 1) / sum(r.links for r in part) for part in subsets)
    return slowest * sum(r.links for r in rings) / (whole - 1)


def _stays(level: GroupLevel, group: DeviceGroup) -> float:
    """Return the share of a ring of `group` that the links in a unit of `level` carry. Those to a switch carry what
    leaves too; those to other chips do not, and each of the rings leaves at another chip."""
    return 1 - 1 / level.members if level.links and len(group.levels) > 1 else 1.0


def _ring_name(group: DeviceGroup) -> str:
    rings = len(group.levels[-1].rings)
    return f"{rings} rings" if rings > 1 else "ring"


def _move_s(device_bytes: float, level: GroupLevel) -> float:
    """Return the seconds for one device to send `device_bytes` at `level`. A message of s bytes achieves s / (s +
    `half_bytes`) of the bandwidth, and at least `SLOWEST_SHARE` of it."""
    return (device_bytes + min(level.half_bytes, (1 / SLOWEST_SHARE - 1) * device_bytes)) / level.bytes_per_s


def _reduced_s(buffer_bytes: float, group: DeviceGroup) -> float:
    """Return the seconds of an in-network all-reduce, with all levels at work at the same time. A level whose switches
    do not add carries the buffer twice."""
    each = [_move_s(buffer_bytes / p.below, p) * (1 / p.reduction if p.reduction else 2) for p in group.levels]
    return max(each) + 2 * latency_s(group)


def _exchange_s(buffer_bytes: float, level: GroupLevel, group: DeviceGroup) -> float:
    """Return the seconds of an all-to-all at one level, without latency. They are those of the bytes that leave a
    device's unit (such as its node) or, on a torus, that cross the busiest link."""
    if level.links:  # what leaves the node is not on its links
        return _move_s(buffer_bytes * (level.members - 1) * level.below / group.size, level)
    if not level.rings:
        return _move_s(buffer_bytes * (1 - level.below / group.size), level)
    inside = buffer_bytes * level.below * level.members / group.size
    link = level.bytes_per_s / sum(r.links for r in level.rings)
    return max(r.crossing for r in level.rings) * inside / link


def _sent_to_all_s(buffer_bytes: float, level: GroupLevel, group: DeviceGroup) -> float:
    """Return `_exchange_s` in the limit of many members: all bytes leave the unit. A torus has no such limit."""
    return _exchange_s(buffer_bytes, level, group) if level.rings else buffer_bytes / level.bytes_per_s


def _once_s(op: NetworkOp, buffer_bytes: float, group: DeviceGroup) -> float:
    """Return the seconds of a send or broadcast: one message from each member to the next. On a torus, a broadcast
    divides the buffer over the rings."""
    # `_move_s` assumes that all devices send at once; a lone message has another rate.
    sent_s = max(_move_s(buffer_bytes, p) * p.bytes_per_s / _message_bytes_per_s(op, p) for p in group.levels)
    return sent_s + (latency_s(group) if op == "broadcast" else group.levels[-1].latency_s)


def _message_bytes_per_s(op: NetworkOp, level: GroupLevel) -> float:
    """Return the bandwidth (bytes/s) of one message at `level`: that of one link or of its host's uplinks together,
    whichever is lower, and at least a device's share."""
    rate = max(level.bytes_per_s, min(level.unit_bytes_per_s / level.hosts, level.message_bytes_per_s))
    if op == "broadcast" or not level.rings:
        return rate if op == "broadcast" else rate / max(1.0, level.links)
    return rate / (sum(r.links for r in level.rings) * max(r.stride for r in level.rings))


# Latency.


def _hops(level: GroupLevel) -> float:
    """Return the number of sequential messages along a ring at `level`."""
    return sum(r.hops for r in level.rings) if level.rings else level.members - 1


def _ring_latency_s(levels: Sequence[GroupLevel]) -> float:
    """Return the latency (s) of a ring through all members: n - 1 steps, each with the latency of its level."""
    total, outside = 0.0, 1.0
    for p in reversed(levels):
        total += _hops(p) * outside * p.latency_s
        outside *= p.members
    return total


def _tree_latency_s(levels: Sequence[GroupLevel]) -> float:
    return sum(log2(p.members) * p.latency_s for p in levels)
