"""Before dropless tokens are dispatched, ranks exchange the number of rows of each expert."""

from __future__ import annotations

from collections.abc import Iterator

from planc.backends.cuda.analysis.roles import AxisRoles
from planc.backends.cuda.rules.rule import Rows, changed, routed_tensors
from planc.ir.collective import DTYPE_BYTES, Collective

NAME = "exchange_token_counts"


def apply(roles: AxisRoles, rows: Rows) -> Rows:
    if roles.experts.capacity:
        return rows
    there = {name for name, way in routed_tensors(roles).items() if way == "there"}
    return tuple(new for row in rows for new in _with_counts(roles, row, row.tensor in there))


def _with_counts(roles: AxisRoles, row: Collective, there: bool) -> Iterator[Collective]:
    """Yields `row`, and if it sends tokens to experts (`there`) outside the backward, the exchange of row counts."""
    yield row
    if there and row.phase != "backward" and row.op in ("all_to_all", "all_gather"):
        counts = roles.plan.model.sizes["experts"] * (row.group_size if row.op == "all_gather" else 1)
        counted = counts * DTYPE_BYTES["int64"]
        yield changed(row, NAME, tensor=f"{row.tensor} counts", dtype="int64", buffer_bytes=counted)
