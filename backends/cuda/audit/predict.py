"""Predicted collectives of one pipeline stage by operation, mesh dimension and dtype."""

from __future__ import annotations

from collections import Counter

from planc.backends.cuda.analysis.roles import Roles
from planc.backends.cuda.rules import realise
from planc.ir.audit import Key, Total, Totals
from planc.ir.sharding import Sharded
from planc.sharding.collectives import semantic_collectives


def predicted(sharded: Sharded, stage: int) -> Totals:
    """The realised collectives of pipeline stage `stage`, with the payload of each send."""
    roles = Roles(sharded)
    calls: Counter[Key] = Counter()
    payload: Counter[Key] = Counter()
    for row in realise(sharded, semantic_collectives(sharded)):
        if row.stage == stage:
            key = row.op, roles.dimension(row.axes), row.dtype
            calls[key] += row.count
            payload[key] += round(row.payload_bytes)
    return {k: Total(calls[k], payload[k]) for k in calls}
