"""Equal gathers of a tied embedding for the lookup and the head are merged (common subexpression elimination).

A lookup in fp32 and a head in bf16 need two, except on virtual CPU devices, where both are in fp32: 290 gathers over
fsdp of fsdp 2 > tp 2 with a tied head, and 291 without. A pipeline looks up before its loop, and runs the head inside
it.
"""

from __future__ import annotations

from planc.backends.xla.analysis.pipeline import pipelined
from planc.backends.xla.rules.rule import Rows
from planc.ir.collective import Collective
from planc.ir.sharding import Sharded

NAME = "one_gather_of_a_tied_table"


def apply(sharded: Sharded, rows: Rows) -> Rows:
    """Return `rows` of `sharded` without a tied embedding's gathers for the head that equal one for the lookup."""
    tied = {p.param.name for p in sharded.tied}
    of_lookup = {_values(r) for r in rows if r.section == "first" and r.carries == "param"}
    return tuple(
        r
        for r in rows
        if not (r.tensor in tied and r.section == "last" and r.carries == "param" and _values(r) in of_lookup)
        or (pipelined(sharded.plan) and r.phase != "optimizer")
    )


def _values(row: Collective) -> tuple[object, ...]:
    """Return a key of the values that `row` gathers, equal for rows that gather the same."""
    return row.op, row.axes, row.tensor, row.phase, row.dtype, row.count, row.buffer_bytes
