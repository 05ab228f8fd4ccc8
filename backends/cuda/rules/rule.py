"""Helpers of the rules. A rule changes predicted collectives (rows), and adds its name to those that it changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from planc.backends.cuda.analysis.roles import AxisRoles
from planc.ir.collective import Collective
from planc.ir.model import EXPERTS

Rows = tuple[Collective, ...]


def changed(row: Collective, rule: str, **fields: Any) -> Collective:
    """Returns `row` with other values for `fields`, and with `rule` added to the names in `realised_by`."""
    return replace(row, **fields, realised_by=(*row.realised_by, rule))


def over(row: Collective, roles: AxisRoles, axes: tuple[str, ...]) -> dict[str, Any]:
    """Returns the fields of a collective `row` over `axes`: the axes in mesh order and the number of ranks."""
    mesh = roles.plan.mesh
    return {"axes": mesh.in_order(axes), "group_size": mesh.size(*axes)}


def of_state(row: Collective, roles: AxisRoles) -> bool:
    """True if fully_shard issues the collective `row`: it transfers a parameter or gradient over data axes only, or
    of experts that are an FSDP group of their own. False for the sum of tied gradients over a pipeline (section
    `step`)."""
    if row.carries not in ("param", "grad") or row.section == "step":
        return False
    return of_experts(row, roles) or not set(row.axes) & set(roles.tensor)


def of_experts(row: Collective, roles: AxisRoles) -> bool:
    """True if `row` transfers a parameter or gradient of experts that are an FSDP group of their own."""
    known = roles.sharded.param.get(row.tensor)
    return roles.experts.apart and known is not None and known.param.region == EXPERTS


def routed_tensors(roles: AxisRoles) -> dict[str, str]:
    """Returns the names of the tensors whose rows are sorted by expert: `there` for those sent to the experts, `back`
    for those sent back."""
    ops = [o.op for section in roles.sharded.ops.values() for o in section]
    there = {op.output: "there" for op in ops if op.kind == "route"}
    return there | {op.inputs[0]: "back" for op in ops if op.kind == "combine"}
