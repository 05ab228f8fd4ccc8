"""Helpers of the rules, which transform rows (the predicted collectives of a step) and mark those that they change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from planc.backends.cuda.analysis.roles import AxisRoles
from planc.ir.collective import Collective
from planc.ir.model import EXPERTS

Rows = tuple[Collective, ...]


def changed(row: Collective, rule: str, **fields: Any) -> Collective:
    """Returns `row` with the new `fields`, and the name of `rule` added to `realised_by`."""
    return replace(row, **fields, realised_by=(*row.realised_by, rule))


def over(row: Collective, roles: AxisRoles, axes: tuple[str, ...]) -> dict[str, Any]:
    """Returns the fields that make a `row` run over `axes`: the axes in mesh order and the number of ranks."""
    mesh = roles.plan.mesh
    return {"axes": mesh.in_order(axes), "group_size": mesh.size(*axes)}


def of_state(row: Collective, roles: AxisRoles) -> bool:
    """True if fully_shard issues the collective `row`: it carries a parameter or gradient, over data axes only, or of
    experts with their own mesh. Sums over pipeline stages, in the section `step`, are not of fully_shard."""
    if row.carries not in ("param", "grad") or row.section == "step":
        return False
    return of_experts(row, roles) or not set(row.axes) & set(roles.tensor)


def of_experts(row: Collective, roles: AxisRoles) -> bool:
    """True if `row` carries a parameter or gradient of experts with their own mesh."""
    known = roles.sharded.param.get(row.tensor)
    return roles.experts.apart and known is not None and known.param.region == EXPERTS


def routed_tensors(roles: AxisRoles) -> dict[str, str]:
    """Returns the names of the tensors whose rows are sorted by expert, with `there` for those on their way to the
    experts, and `back` for those on their way back."""
    ops = [o.op for section in roles.sharded.ops.values() for o in section]
    there = {op.output: "there" for op in ops if op.kind == "route"}
    return there | {op.inputs[0]: "back" for op in ops if op.kind == "combine"}
