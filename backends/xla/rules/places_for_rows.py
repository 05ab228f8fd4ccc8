"""Tokens travel in places, of which each expert has as many for every rank: used or not.

With dropless routing there is one for every token of a rank, since all may pick the same expert: experts / k
times the rows of an even choice. With a capacity they are the share's rows, rounded up.
"""

from __future__ import annotations

from planc.backends.xla.experts import Experts
from planc.backends.xla.rules.rule import Rows, changed, of_tokens
from planc.ir.collective import Collective
from planc.ir.sharding import Sharded
from planc.sharding.local import dim_length

NAME = "places_for_rows"


def apply(sharded: Sharded, rows: Rows) -> Rows:
    experts = Experts(sharded)
    if not experts.ops:
        return rows
    factor = _places(experts) / _even(experts)
    return tuple(_placed(row, factor) if of_tokens(sharded, row) else row for row in rows)


def _places(experts: Experts) -> int:
    plan = experts.plan
    ranks = plan.mesh.size(*plan.axes_of("sequence", "residual"))
    return experts.places(plan.batch.microbatch_sequences * plan.batch.sequence_tokens // ranks)


def _even(experts: Experts) -> float:
    """Rows of an expert and a rank under an even choice, as the semantic rows have them."""
    plan = experts.plan
    return dim_length(plan, "slots") / plan.mesh.size(*plan.axes_of("slots", "dispatch"))


def _placed(row: Collective, factor: float) -> Collective:
    return changed(row, NAME, buffer_bytes=row.buffer_bytes * factor)
