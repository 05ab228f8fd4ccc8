"""Helpers of the rules: rows, and the mark on rows that a rule has changed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from planc.backends.cuda.analysis.roles import AxisRoles
from planc.ir.collective import Collective
from planc.ir.model import EXPERTS

Rows = tuple[Collective, ...]


def changed(row: Collective, rule: str, **fields: Any) -> Collective:
    """`row` with other values in `fields`, and the name of `rule` in `realised_by`."""
    return replace(row, **fields, realised_by=(*row.realised_by, rule))


def over(row: Collective, roles: AxisRoles, axes: tuple[str, ...]) -> dict[str, Any]:
    """The fields of a row that say that it runs over `axes`: the axes in the mesh's order and the number of ranks."""
    mesh = roles.plan.mesh
    return {"axes": mesh.in_order(axes), "group_size": mesh.size(*axes)}


def of_state(row: Collective, roles: AxisRoles) -> bool:
    """True if fully_shard issues this row: a parameter or gradient over the data axes alone, or of experts on a mesh of
    their own. What stages of a pipeline sum is of the `step`."""
    if row.carries not in ("param", "grad") or row.section == "step":
        return False
    return of_experts(row, roles) or not set(row.axes) & set(roles.tensor)


def of_experts(row: Collective, roles: AxisRoles) -> bool:
    """True when `row` carries a parameter or gradient of experts that lie on a mesh of their own."""
    known = roles.sharded.param.get(row.tensor)
    return roles.experts.apart and known is not None and known.param.region == EXPERTS


def routed_tensors(roles: AxisRoles) -> dict[str, str]:
    """Tensors of rows laid out by expert, by name: `there` on the way to the experts, `back` on the way home."""
    ops = [o.op for section in roles.sharded.ops.values() for o in section]
    there = {op.output: "there" for op in ops if op.kind == "route"}
    return there | {op.inputs[0]: "back" for op in ops if op.kind == "combine"}
