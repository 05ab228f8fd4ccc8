"""What the rules share: rows, and a mark on those that a rule has changed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from planc.ir.collective import Collective

from ..roles import Roles

Rows = tuple[Collective, ...]


def changed(row: Collective, rule: str, **fields: Any) -> Collective:
    """The row with other values, and the rule's name in `realised_by`."""
    return replace(row, **fields, realised_by=(*row.realised_by, rule))


def over(row: Collective, roles: Roles, axes: tuple[str, ...]) -> dict[str, Any]:
    """The fields of a row that say which axes it runs over."""
    mesh = roles.plan.mesh
    return {"axes": mesh.in_order(axes), "group_size": mesh.size(*axes)}


def of_state(row: Collective, roles: Roles) -> bool:
    """Whether fully_shard issues this row: a parameter or gradient over the data axes alone."""
    return row.carries in ("param", "grad") and not set(row.axes) & set(roles.tensor)
