"""Seconds of one collective over a group, from its bytes and the levels that the group crosses.

A buffer of B bytes over n members, of which D meet at a level, m in each unit below it:

    gather, scatter   a ring carries B (n - 1) / n through the m ways out of a unit, at every level at once;
                      hierarchical: a ring in each node, then one over the nodes: fewer messages, two phases;
                      a tree: log2 of the nodes, but at a small message's share of the bandwidth
    all-reduce        twice that; or B each way up a tree; or once through switches that add
    all to all        each member sends B (n - m) / n out of its unit; on a torus what crosses the middle
    send, broadcast   B once

The best of these counts, as the libraries choose by size. Sources: Thakur, Rabenseifner and Gropp 2005;
Chan et al. 2007 for tori and hierarchies; the public scaling book, gpus.md and sharding.md, for the tree of
levels; NCCL's own model (src/graph/tuning.cc) for the latencies of rings and trees.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import log2
from typing import Literal

from planc.cost.machine.topology import Phase, Span
from planc.ir.collective import CollectiveOp
from planc.ir.hardware import Cluster

Op = CollectiveOp | Literal["broadcast"]

PASSES: dict[Op, int] = {
    "all_gather": 1,
    "reduce_scatter": 1,
    "all_reduce": 2,
    "all_to_all": 1,
    "send_recv": 1,
    "broadcast": 1,
}
"""How often the buffer crosses the slowest cut: an all-reduce scatters and gathers."""

SLOWEST_SHARE = 0.25
"""Small messages go by a protocol with a flag in every word, at a quarter of the bandwidth (NCCL's LL)."""

LARGE_BYTES = 2.0**30


def collective_s(op: Op, buffer_bytes: float, span: Span) -> float:
    """Seconds of one call, the framework's own time in it. `buffer_bytes`: the larger of input and output on one
    device."""
    return transfer_s(op, buffer_bytes, span) + span.call_s


def transfer_s(op: Op, buffer_bytes: float, span: Span) -> float:
    """Seconds of one call on the links, without the framework's launch.

    `buffer_bytes` is the larger of input and output on one device; `span` says where the group lies.

    >>> from planc.cost.machine.topology import Ring, ring_span
    >>> span = ring_span(Ring(4, wrapped=True), link_bytes_per_s=50e9)  # two links of 50 GB/s each
    >>> transfer_s("all_gather", 4e9, span), transfer_s("all_reduce", 4e9, span)
    (0.03, 0.06)
    """
    return min((s for _, s in _algorithms(op, buffer_bytes, span)), default=0.0) / span.efficiency(op)


def algorithm(op: Op, span: Span, buffer_bytes: float = LARGE_BYTES) -> str:
    """How the collective is assumed to run: the fastest way for this size."""
    return min(_algorithms(op, buffer_bytes, span), key=lambda one: one[1], default=("none", 0.0))[0]


def limit_s(op: Op, buffer_bytes: float, span: Span) -> float:
    """Seconds without latency as if the group had many members at every level: (n - 1) / n is 1."""
    slowest = min((p.unit_bytes_per_s for p in span.phases), default=float("inf"))
    return PASSES[op] * buffer_bytes / slowest


def bound_s(buffer_bytes: float, span: Span) -> float:
    """No gather takes less: every unit receives what it lacks, (D - 1) / D of the buffer, at all levels at once.

    Source: public scaling book, gpus.md, for a tree of switches.
    """
    return max((buffer_bytes / gather_bytes_per_s(p) for p in span.phases), default=0.0)


def gather_bytes_per_s(phase: Phase) -> float:
    """Bytes of a buffer that one level lets its units gather per second."""
    return phase.unit_bytes_per_s * phase.members / (phase.members - 1)


def algorithm_bytes_per_s(op: Op, buffer_bytes: float, span: Span) -> float:
    """Bytes of the buffer done per second."""
    return buffer_bytes / collective_s(op, buffer_bytes, span)


def group_bytes_per_s(op: Op, buffer_bytes: float, span: Span) -> float:
    """Bytes of all members' buffers together done per second."""
    return span.size * algorithm_bytes_per_s(op, buffer_bytes, span)


def tree_gather_bytes_per_s(span: Span) -> float:
    """Bytes of a buffer that the slowest level lets a group gather per second."""
    return min((gather_bytes_per_s(p) for p in span.phases), default=float("inf"))


def multicast_ingress_bytes(buffer_bytes: float, span: Span, level: str) -> float:
    """Bytes into one switch of a level when switches copy: what is below comes up once, the rest comes down."""
    phase = phase_of(span, level)
    below = phase.below * phase.members / span.size
    return buffer_bytes * below + buffer_bytes * (1 - below)


def phase_of(span: Span, level: str) -> Phase:
    """The phase of a level that the group crosses. Raises ValueError when it crosses no such level."""
    for phase in span.phases:
        if phase.name == level:
            return phase
    raise ValueError(f"the group does not cross {level}, only {', '.join(p.name for p in span.phases)}")


def array_s(op: Op, array_bytes: float, span: Span) -> float:
    """Seconds for an array of this size that the group holds once (divided) or each of them (reduced)."""
    return collective_s(op, array_bytes / span.size if op == "all_to_all" else array_bytes, span)


def time_ratio(one: Op, other: Op, array_bytes: float, span: Span) -> float:
    """How many times as long `one` takes as `other` for the same array."""
    return array_s(one, array_bytes, span) / array_s(other, array_bytes, span)


def ring_share(op: Op, members: int) -> float:
    """The part of its buffer that each member of a ring sends."""
    return 1.0 if op in ("send_recv", "broadcast") else PASSES[op] * (members - 1) / members


def peers_hit(members: int, choices: int) -> float:
    """Expected share of a group that one token's `choices` fall on, itself left out.

    A token goes once to each member that holds at least one of its experts; with choices at random a
    member is missed with probability ((n - 1) / n) ** choices. Source: public scaling book, gpus.md.
    """
    away = (members - 1) / members
    return (1 - away**choices) * away


def ragged_all_to_all_s(token_bytes: float, choices: int, span: Span) -> float:
    """Seconds to send each token once to every member it chose. `token_bytes`: one device's tokens."""
    n = span.size
    return collective_s("all_to_all", token_bytes * n * peers_hit(n, choices) / (1 - 1 / n), span) if n > 1 else 0.0


def latency_s(span: Span) -> float:
    """The shortest wait of a collective: every hop inside, a tree outside."""
    near = sum(_hops(p) * p.latency_s for p in span.phases if not p.network)
    return near + _tree_latency_s([p for p in span.phases if p.network])


def latency_bound_bytes(phase: Phase) -> float:
    """Below this size a hop waits longer than it sends: latency times the bandwidth of one link."""
    links = sum(r.links for r in phase.rings) or 1
    return phase.latency_s * phase.bytes_per_s / links


def torus_send_s(buffer_bytes: float, cluster: Cluster, source: tuple[int, ...], target: tuple[int, ...]) -> float:
    """Seconds from one chip of a torus to another: over one link of every dimension in which they differ."""
    link = cluster.link
    ways = [_distance(*at) for at in zip(source, target, cluster.shape, cluster.wrap, strict=True)]
    ports = sum(1 for hops in ways if hops)
    if not ports:
        return 0.0
    return buffer_bytes / (ports * link.bandwidth_bytes_per_s * link.efficiency) + sum(ways) * link.latency_s


def _distance(source: int, target: int, length: int, wrapped: bool) -> int:
    straight = abs(source - target)
    return min(straight, length - straight) if wrapped else straight


# The ways to run a collective, each with its seconds.


def _algorithms(op: Op, buffer_bytes: float, span: Span) -> Iterator[tuple[str, float]]:
    if not span.phases:
        return
    if op in ("send_recv", "broadcast"):
        name = "point to point" if op == "send_recv" else "tree"
        yield name, _once_s(op, buffer_bytes, span)
    elif op == "all_to_all":
        yield "all to all", max(_exchange_s(buffer_bytes, p, span) for p in span.phases) + latency_s(span)
    else:
        yield from _gathers(op, buffer_bytes, span)


def _gathers(op: Op, buffer_bytes: float, span: Span) -> Iterator[tuple[str, float]]:
    """Gathers and reductions: rings, node by node, trees, switches that add."""
    times = PASSES[op]
    near = [p for p in span.phases if not p.network]
    far = [p for p in span.phases if p.network]
    inside_s = sum(_part_s(buffer_bytes, p, p.members) + _hops(p) * p.latency_s for p in near)
    if len(span.phases) == 1 or not any(p.rings for p in near):
        ring_s = max(_part_s(buffer_bytes, p, span.size) for p in span.phases)
        yield _ring_name(span), times * (ring_s + _ring_latency_s(span.phases))
    if near and len(span.phases) > 1:
        nodes_s = max((_part_s(buffer_bytes, p, span.outside) for p in far), default=0.0)
        yield "hierarchical", times * (inside_s + nodes_s + _ring_latency_s(far))
    if far and op == "all_reduce":
        yield "tree", times * (max(_move_s(buffer_bytes / p.below, p) for p in span.phases) + latency_s(span))
    elif far:
        slow_s = max(_part_s(buffer_bytes, p, span.outside) for p in far) / SLOWEST_SHARE
        yield "tree", times * (inside_s + slow_s + _tree_latency_s(far))
    if op == "all_reduce" and any(p.reduction for p in span.phases):
        yield "in-network reduction", _reduced_s(buffer_bytes, span)


def _part_s(buffer_bytes: float, phase: Phase, members: float) -> float:
    """One pass of a ring of `members` at one level: all of the buffer but the member's own part."""
    return _move_s(buffer_bytes * (1 - 1 / members) / phase.below, phase)


def _ring_name(span: Span) -> str:
    rings = len(span.phases[-1].rings)
    return f"{rings} rings" if rings > 1 else "ring"


def _move_s(device_bytes: float, phase: Phase) -> float:
    """Seconds for one device to send `device_bytes`: size / (size + half) of the peak, or the slow protocol."""
    return (device_bytes + min(phase.half_bytes, (1 / SLOWEST_SHARE - 1) * device_bytes)) / phase.bytes_per_s


def _reduced_s(buffer_bytes: float, span: Span) -> float:
    """Up a tree and down again, all levels at once; switches that add take the buffer once."""
    each = [_move_s(buffer_bytes / p.below, p) * (1 / p.reduction if p.reduction else 2) for p in span.phases]
    return max(each) + 2 * latency_s(span)


def _exchange_s(buffer_bytes: float, phase: Phase, span: Span) -> float:
    """All to all at one level: what leaves a unit, or what the busiest torus link carries."""
    if not phase.rings:
        return _move_s(buffer_bytes * (1 - phase.below / span.size), phase)
    inside = buffer_bytes * phase.below * phase.members / span.size
    link = phase.bytes_per_s / sum(r.links for r in phase.rings)
    return max(r.crossing for r in phase.rings) * inside / link


def _once_s(op: Op, buffer_bytes: float, span: Span) -> float:
    """The buffer once, to a neighbour along the axis or down a tree."""
    phase = span.phases[-1]
    if op == "broadcast":
        return max(_move_s(buffer_bytes, p) for p in span.phases) + latency_s(span)
    one_link = sum(r.links for r in phase.rings) * max(r.stride for r in phase.rings) if phase.rings else 1
    return one_link * _move_s(buffer_bytes, phase) + phase.latency_s


# Latency.


def _hops(phase: Phase) -> float:
    """Messages one after the other in a ring at one level."""
    return sum(r.hops for r in phase.rings) if phase.rings else phase.members - 1


def _ring_latency_s(phases: Sequence[Phase]) -> float:
    """One ring through all members: n - 1 steps, of which a level has as many as it joins units."""
    total, outside = 0.0, 1.0
    for p in reversed(phases):
        total += _hops(p) * outside * p.latency_s
        outside *= p.members
    return total


def _tree_latency_s(phases: Sequence[Phase]) -> float:
    return sum(log2(p.members) * p.latency_s for p in phases)
