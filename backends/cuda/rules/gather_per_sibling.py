"""Siblings that read one tensor share a gather only if torch's styles let their parent make it.

The semantic move is one. Where some siblings are column parallel and others whole (an `override`),
each prepares its own input.
"""

from __future__ import annotations

from planc.ir.collective import Collective

from ..roles import Roles
from ..styles import Styler
from .rule import Rows, changed

NAME = "gather_per_sibling"


def apply(roles: Roles, rows: Rows) -> Rows:
    styler = Styler(roles.sharded, roles)
    return tuple(_each(styler, row) for row in rows)


def _each(styler: Styler, row: Collective) -> Collective:
    if row.carries != "activation" or row.op != "all_gather" or row.phase not in ("forward", "recompute"):
        return row
    gathers = styler.separate_gathers(row.tensor)
    return changed(row, NAME, count=row.count * gathers) if gathers > 1 else row
