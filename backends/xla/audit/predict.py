"""Predicts the collectives of a compiled program by operation, mesh axes and dtype."""

from __future__ import annotations

from collections import Counter

from planc.backends.xla.analysis.mesh_factors import parts
from planc.backends.xla.rules import realise
from planc.ir.audit import Key, Total, Totals
from planc.ir.sharding import Sharded
from planc.sharding.collectives import semantic_collectives


def predicted(sharded: Sharded) -> Totals:
    """Return the calls and bytes that one device of `sharded` sends in a step, over the axes of the emitted mesh.

    All devices run one program, so bytes are averaged over the pipeline stages.
    """
    calls: Counter[Key] = Counter()
    wire: dict[Key, float] = {}
    stages = sharded.plan.pipeline
    for row in realise(sharded, semantic_collectives(sharded)):
        key = row.op, "+".join(parts(sharded.plan, row.axes)), row.dtype
        calls[key] += row.count
        wire[key] = wire.get(key, 0.0) + row.wire_bytes / stages
    return {key: Total(calls[key], round(sent)) for key, sent in wire.items()}


def by_axis(totals: Totals) -> dict[str, int]:
    """Return the bytes sent over each axis in `totals`, summed over operations."""
    sent: dict[str, int] = {}
    for (_, axis, _), total in totals.items():
        sent[axis] = sent.get(axis, 0) + total.bytes
    return sent
