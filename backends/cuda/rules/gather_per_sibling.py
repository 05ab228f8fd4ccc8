"""Ops that read the same tensor share a redistribution only if one parent module can issue it for all of them.

The framework-independent prediction has one redistribution for all of them, and one of the gradient. If some of the ops
are sharded and others not (an `override`), or they are in different modules, each op redistributes its own input.
"""

from __future__ import annotations

from planc.backends.cuda.analysis.roles import AxisRoles
from planc.backends.cuda.analysis.styles import Styler
from planc.backends.cuda.rules.rule import Rows, changed
from planc.ir.collective import Collective

NAME = "gather_per_sibling"


def apply(roles: AxisRoles, rows: Rows) -> Rows:
    styler = Styler(roles.sharded, roles)
    return tuple(_gather_per_sibling(styler, row) for row in rows)


def _gather_per_sibling(styler: Styler, row: Collective) -> Collective:
    if row.carries != "activation" or row.section not in styler.sharded.ops:
        return row
    times = styler.repeats(row.section, row.tensor, row.op, backward=row.phase == "backward")
    return changed(row, NAME, count=row.count * times) if times > 1 else row
