"""fully_shard all-gathers and reduces a group of parameters at once. The groups are the embedding, each block or bucket
of blocks, and the last norm with the head.

The experts of a block are a separate group if they are sharded differently from the block.
"""

from __future__ import annotations

from planc.backends.cuda.analysis.roles import AxisRoles
from planc.backends.cuda.rules.rule import Rows, changed, of_experts, of_state
from planc.ir.collective import Collective

NAME = "group_state"


def apply(roles: AxisRoles, rows: Rows) -> Rows:
    """Returns `rows` with the collectives of each FSDP group merged into one."""
    groups: dict[tuple[object, ...], list[Collective]] = {}
    for place, row in enumerate(rows):
        groups.setdefault((*_key(row), of_experts(row, roles)) if of_state(row, roles) else (place,), []).append(row)
    return tuple(_bucketed(roles, _merged(group)) for group in groups.values())


def _bucketed(roles: AxisRoles, row: Collective) -> Collective:
    """Returns `row`, a collective of one block, changed to that of the plan's bucket of several blocks."""
    layers = roles.plan.bucket_layers
    if layers == 1 or row.section not in roles.sharded.model.blocks or not of_state(row, roles):
        return row
    return changed(row, NAME, count=row.count // layers, buffer_bytes=row.buffer_bytes * layers)


def _key(row: Collective) -> tuple[object, ...]:
    return (row.stage, row.op, row.axes, row.phase, row.carries, row.section, row.dtype, row.count)


def _merged(group: list[Collective]) -> Collective:
    if len(group) == 1:
        return group[0]
    tensor = "layers.*" if group[0].section == "block" else " + ".join(r.tensor for r in group)
    return changed(group[0], NAME, tensor=tensor, buffer_bytes=sum(r.buffer_bytes for r in group))
