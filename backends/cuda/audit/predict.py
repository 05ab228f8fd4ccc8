"""Predicted collectives of one pipeline stage by operation, mesh dimension and dtype."""

from __future__ import annotations

from collections import Counter

from planc.backends.cuda.analysis.roles import Roles
from planc.backends.cuda.rules import realise
from planc.ir.audit import Key, Total, Totals
from planc.ir.collective import Collective
from planc.ir.sharding import Sharded
from planc.sharding.collectives import semantic_collectives


def predicted(sharded: Sharded, stage: int) -> Totals:
    """The realised collectives of pipeline stage `stage`, with the payload of each send."""
    roles = Roles(sharded)
    calls: Counter[Key] = Counter()
    payload: Counter[Key] = Counter()
    for row in realise(sharded, semantic_collectives(sharded)):
        if row.stage == stage:
            key = row.op, dimension_of(roles, row), row.dtype
            calls[key] += row.count
            payload[key] += round(row.payload_bytes)
    return {k: Total(calls[k], payload[k]) for k in calls}


def dimension_of(roles: Roles, row: Collective) -> str:
    """The dimension of the mesh that a row runs over: a sum between both ends of a pipeline leaves out the others."""
    ends = row.carries == "grad" and row.axes == roles.pipeline and row.group_size < roles.plan.mesh.size(*row.axes)
    return roles.ends_name if ends else roles.dimension(row.axes)
