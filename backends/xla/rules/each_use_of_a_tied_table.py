"""The gradients of a tied embedding are summed over ranks separately for the lookup and the head, then added.

Read on virtual devices from dp 4 with zero1, and from fsdp 2 > tp 2 with a table of 138 x 64 and 4 microbatches: the
sums over fsdp are 70,656 bytes more than those of one gradient per microbatch.
"""

from __future__ import annotations

from dataclasses import replace

from planc.backends.xla.analysis.pipeline import pipelined
from planc.backends.xla.rules.rule import Rows
from planc.ir.sharding import Sharded

NAME = "each_use_of_a_tied_table"


def apply(sharded: Sharded, rows: Rows) -> Rows:
    """Return `rows` of `sharded` with the gradient sums of a tied embedding twice: for the lookup and for the head."""
    if pipelined(sharded.plan):  # each use has rows of its own there
        return rows
    tied = {p.param.name for p in sharded.tied}
    again = [row for row in rows if row.tensor in tied and row.carries == "grad" and row.section == "first"]
    return (*rows, *(replace(row, section="last", realised_by=(*row.realised_by, NAME)) for row in again))
