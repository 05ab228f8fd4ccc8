"""Seconds of one collective over a group, from its bytes and where the group lies.

Bandwidth terms are the usual ring bounds (each device receives (n-1)/n of the buffer); across nodes
the phases are hierarchical and overlap, so the slower one counts. Sources: Thakur et al. 2005,
"Optimization of collective communication operations in MPICH"; the public scaling book for tori.
"""

from __future__ import annotations

from math import log2

from planc.cost.topology import Span
from planc.ir.collective import CollectiveOp

PASSES: dict[CollectiveOp, int] = {
    "all_gather": 1,
    "reduce_scatter": 1,
    "all_reduce": 2,
    "all_to_all": 1,
    "send_recv": 1,
}
"""How often the buffer crosses the slowest cut: an all-reduce scatters and gathers."""


def collective_s(op: CollectiveOp, buffer_bytes: float, span: Span) -> float:
    """Seconds of one call. `buffer_bytes` is the larger of the input and output on one device."""
    if op == "send_recv":
        return _send_s(buffer_bytes, span)
    near = _phase_s(buffer_bytes, span.inside, span.inside_bytes_per_s)
    # A node's `inside` members bring their own ways out: each carries its part of the buffer.
    far = _phase_s(buffer_bytes / span.inside, span.outside, span.outside_bytes_per_s)
    if op == "all_to_all":
        # Each device sends most of its buffer outside; nothing is shared between members.
        far = _phase_s(buffer_bytes, span.outside, span.outside_bytes_per_s)
    return PASSES[op] * (max(near, far) + latency_s(span))


def latency_s(span: Span) -> float:
    """A ring inside, a tree outside."""
    inside = span.inside_latency_s * (span.inside - 1) / span.rings
    outside = span.outside_latency_s * log2(span.outside) if span.outside > 1 else 0.0
    return inside + outside


def _phase_s(buffer_bytes: float, members: int, bytes_per_s: float) -> float:
    return buffer_bytes * (members - 1) / members / bytes_per_s if members > 1 else 0.0


def _send_s(buffer_bytes: float, span: Span) -> float:
    """Point to point to a neighbour along the axis."""
    if span.outside > 1:
        return buffer_bytes / span.outside_bytes_per_s + span.outside_latency_s
    return buffer_bytes / span.inside_bytes_per_s + span.inside_latency_s


def algorithm(op: CollectiveOp, span: Span) -> str:
    """How the collective is assumed to run."""
    if op == "send_recv":
        return "point to point"
    if span.outside > 1 and span.inside > 1:
        return "hierarchical ring + tree"
    if span.rings > 1:
        return f"{span.rings} rings"
    return "tree" if span.outside > 1 else "ring"
