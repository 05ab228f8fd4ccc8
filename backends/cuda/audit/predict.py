"""Predicts the collectives of one pipeline stage, by operation, mesh dimension and dtype."""

from __future__ import annotations

from collections import Counter

from planc.backends.cuda.analysis.fsdp_shard_dim import stored_dim, stored_over
from planc.backends.cuda.analysis.roles import AxisRoles
from planc.backends.cuda.rules import realise
from planc.backends.cuda.rules.pad_dim0 import rows_on_rank
from planc.ir.audit import Key, Total, Totals
from planc.ir.collective import Collective
from planc.ir.sharding import Sharded
from planc.sharding.collectives import semantic_collectives


def predicted(sharded: Sharded, stage: int, rank: int | None = None) -> Totals:
    """Returns the collectives and payload bytes that torch issues on pipeline stage `stage` of `sharded`, on the global
    `rank`; None: on the rank that sends most."""
    roles = AxisRoles(sharded)
    calls: Counter[Key] = Counter()
    payload: Counter[Key] = Counter()
    for row in realise(sharded, semantic_collectives(sharded)):
        if row.stage == stage:
            key = row.op, dimension_of(roles, row), row.dtype
            calls[key] += row.count
            payload[key] += round(row.payload_bytes * (1.0 if rank is None else _share(roles, row, rank)))
    return {k: Total(calls[k], payload[k]) for k in calls}


def _share(roles: AxisRoles, row: Collective, rank: int) -> float:
    """Returns the payload of `row` (a predicted collective) on `rank`, as a fraction of the largest payload of all
    ranks.

    FSDP gives the last ranks fewer rows of a tensor, so they send less in the all-gather of a Muon update over the
    tensor axes (`gather_whole_updates`) and in the sum of tied gradients over the pipeline. All other fractions are 1.
    """
    if row.carries != "update" and not (row.carries == "grad" and row.axes == roles.pipeline):
        return 1.0
    p, mesh = roles.sharded.param[row.tensor], roles.plan.mesh
    axes, dim = stored_over(roles, p), stored_dim(roles, p)
    if set(row.axes) & set(axes) or set(row.axes) & set(p.compute[dim]):
        return 1.0
    return rows_on_rank(roles, row.tensor, mesh.place_of(rank, axes)) / rows_on_rank(roles, row.tensor, 0)


def dimension_of(roles: AxisRoles, row: Collective) -> str:
    """Returns the name of the mesh dimension that the predicted collective `row` runs over. A sum between the first and
    the last pipeline stage has a mesh dimension of its own."""
    ends = row.carries == "grad" and row.axes == roles.pipeline and row.group_size < roles.plan.mesh.size(*row.axes)
    return roles.ends_name if ends else roles.dimension(row.axes)
