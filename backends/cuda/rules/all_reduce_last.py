"""With hybrid sharding, gradients are all-reduced over the replicas once a step: the emitted program accumulates the
results of the reduce-scatters.

The rule also sets the phase to the backward: fully_shard reduces inside the last backward, not after it.
"""

from __future__ import annotations

from dataclasses import replace

from planc.backends.cuda.analysis.roles import AxisRoles
from planc.backends.cuda.rules.rule import Rows, changed, of_state
from planc.ir.collective import Collective
from planc.sharding.stage_assignment import sections_on

NAME = "all_reduce_last"


def apply(roles: AxisRoles, rows: Rows) -> Rows:
    return tuple(_once_a_step(roles, row) for row in rows)


def _once_a_step(roles: AxisRoles, row: Collective) -> Collective:
    if row.carries != "grad" or not of_state(row, roles):
        return row
    if row.op == "all_reduce":
        return changed(row, NAME, phase="backward", per="step", count=sections_on(roles.plan, row.stage)[row.section])
    return replace(row, phase="backward")
