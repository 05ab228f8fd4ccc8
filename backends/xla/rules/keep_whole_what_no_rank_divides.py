"""A parameter without a divisible dim is replicated: it is not gathered, and its gradient is all-reduced.

Experts are not padded as other parameters are. Read on virtual CPU devices from fsdp 3 with zero1 and 8 experts of 91 x
64: 225,072 bytes of gathers, and 968,021 with those of the experts.
"""

from __future__ import annotations

from planc.backends.xla.analysis.layouts import uncut
from planc.backends.xla.rules.rule import Rows, changed
from planc.ir.collective import Collective
from planc.ir.plan import Noun
from planc.ir.sharding import Sharded

NAME = "keep_whole_what_no_rank_divides"


def apply(sharded: Sharded, rows: Rows) -> Rows:
    scattered = {(r.tensor, r.stage): r.group_size for r in rows if _whole(sharded, r) and r.op == "reduce_scatter"}
    return tuple(
        _summed(row, scattered) if row.carries == "grad" and _whole(sharded, row) else row
        for row in rows
        if not (row.carries in ("param", "update") and _whole(sharded, row))
    )


def _whole(sharded: Sharded, row: Collective) -> bool:
    """True if `row` moves or sums state that the plan shards, for a parameter without a divisible dim."""
    p = sharded.param.get(row.tensor)
    if p is None or (row.carries == "update" and p.axes()):
        return False
    nouns: tuple[Noun, ...] = ("grads", "optimizer") if row.carries == "grad" else ("params", "optimizer")
    noun = next((n for n in nouns if p.stored[n]), None)
    return noun is not None and uncut(sharded.plan, p, noun)


def _summed(row: Collective, scattered: dict[tuple[str, int], int]) -> Collective:
    """Return the all-reduce of a whole gradient instead of `row`, a reduce-scatter or the all-reduce of its shards."""
    if row.op == "reduce_scatter":
        return changed(row, NAME, op="all_reduce")
    return changed(row, NAME, buffer_bytes=row.buffer_bytes * scattered.get((row.tensor, row.stage), 1))
