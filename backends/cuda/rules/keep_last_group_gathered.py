"""The last norm and the head stay gathered between forward and backward, because the backward starts with them."""

from __future__ import annotations

from planc.backends.cuda.analysis.roles import AxisRoles
from planc.backends.cuda.rules.rule import Rows, of_state

NAME = "keep_last_group_gathered"


def apply(roles: AxisRoles, rows: Rows) -> Rows:
    return tuple(
        row
        for row in rows
        if not (of_state(row, roles) and row.carries == "param" and row.phase == "backward" and row.section == "last")
    )
