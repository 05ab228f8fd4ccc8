"""The routing of a measured step, and the predicted bytes corrected by it.

A rank always sends the rows of its own tokens; how many it gets is the router's choice. The payload of a
call is the larger of the two, so the prediction is of an even choice.
"""

from __future__ import annotations

from typing import Any

import torch

from planc.backends.cuda.analysis.roles import AxisRoles
from planc.backends.cuda.audit.observe import Observer
from planc.backends.cuda.rules import exchange_gate_weights, exchange_token_counts, expert_rows_per_rank, realise
from planc.backends.cuda.rules.expert_rows_per_rank import rows_sent
from planc.ir.audit import Total, Totals
from planc.ir.collective import Collective
from planc.ir.sharding import Sharded
from planc.sharding.collectives import semantic_collectives


class Watch(Observer):
    """Also remembers what the program's dispatch counted while it was entered, in forwards and in replays."""

    def __init__(self, emitted: Any, *meshes: Any) -> None:
        super().__init__(*meshes)
        self.emitted = emitted
        self.counted: dict[bool, list[Any]] = {False: [], True: []}
        self.read = getattr(emitted, "sizes", None)

    def __enter__(self) -> Any:
        if self.read is not None:
            self.emitted.sizes = self._remember
        return super().__enter__()

    def __exit__(self, *reason: Any) -> None:
        if self.read is not None:
            self.emitted.sizes = self.read
        super().__exit__(*reason)

    def _remember(self, counts: Any) -> Any:
        replayed = torch._C._current_graph_task_id() != -1  # a backward runs
        self.counted[replayed].append(self.read(counts))
        return self.counted[replayed][-1]


def as_routed(sharded: Sharded, stage: int, expected: Totals, counted: dict[bool, list[Any]]) -> Totals:
    """The predicted totals with the rows that there were in place of an even share of them."""
    roles = AxisRoles(sharded)
    found = dict(expected)
    for row in realise(sharded, semantic_collectives(sharded)):
        here = counted[row.phase == "recompute"]
        if row.stage == stage and here and _of_rows(row):
            key = row.op, roles.dimension(row.axes), row.dtype
            more = round(row.payload_bytes * (_times(roles, row, here) - 1))
            found[key] = Total(found[key].count, found[key].bytes + more)
    return found


def _of_rows(row: Collective) -> bool:
    named = {expert_rows_per_rank.NAME, exchange_gate_weights.NAME} & set(row.realised_by)
    return bool(named) and exchange_token_counts.NAME not in row.realised_by


def _times(roles: AxisRoles, row: Collective, counted: list[Any]) -> float:
    """The rows of all calls over those of as many even ones: exchanged, received and summed, or padded to the longest
    and gathered."""
    experts, even = roles.experts, rows_sent(roles)
    both = experts.exchange and experts.gathers
    exchanged = counted[::2] if both else counted
    if row.op == "all_to_all":
        rows = [max(sum(map(sum, way)) for way in ways) for ways in exchanged]
    elif experts.exchange and not experts.gathers:
        rows = [sum(map(sum, received)) for received, _ in counted]
    else:
        rows = [max(sum(map(sum, held)) for held in shared) for shared in (counted[1::2] if both else counted)]
    return sum(rows) / (len(rows) * even)
