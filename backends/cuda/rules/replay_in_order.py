"""A recompute runs a block in order until the backward has what it needs, and so runs ops whose output is not needed.

The framework-independent prediction leaves these ops out. An example is the last projection of a shared expert, which
runs before the routed experts: it runs again, with its reduction. Observed with deepseek_micro on fsdp 2 > tp 2 and
`recompute blocks` (torch 2.13): one more reduce-scatter for each MoE layer and microbatch.
"""

from __future__ import annotations

from collections.abc import Iterator

from planc.backends.cuda.analysis.replays import named_again
from planc.backends.cuda.analysis.roles import AxisRoles
from planc.backends.cuda.rules.rule import Rows, changed
from planc.ir.collective import Collective
from planc.ir.model import Section
from planc.sharding.recompute import replay
from planc.sharding.stage_assignment import replayed_on, sections_on

NAME = "replay_in_order"


def apply(roles: AxisRoles, rows: Rows) -> Rows:
    """Returns `rows` and the collectives of recomputed ops whose output the backward does not need."""
    if not roles.plan.recompute.blocks:
        return rows
    again = {(kind, tensor) for kind in roles.sharded.model.blocks for tensor in _reduced_again(roles, kind)}
    return tuple(new for row in rows for new in _twice(roles, row, (row.section, row.tensor) in again))


def _reduced_again(roles: AxisRoles, kind: Section) -> Iterator[str]:
    """Yields the redistributed outputs of ops that are recomputed only because they precede the routed experts."""
    again = set(replay(roles.plan, kind).ops)
    after: set[str] = set()
    for o in roles.sharded.ops[kind]:
        if o.op.kind == "route" or after & set(o.op.inputs):
            after.add(o.op.output)
    replayed = any(o.op.output in after and o.op.name in again for o in roles.sharded.ops[kind])
    for o in roles.sharded.ops[kind]:
        alone = o.op.name not in again and named_again(roles.sharded, o.op)  # not one whose output is saved
        if replayed and o.settle is not None and o.op.output not in after and alone:
            yield o.op.output


def _twice(roles: AxisRoles, row: Collective, again: bool) -> Iterator[Collective]:
    yield row
    if again and row.phase == "forward":
        copies = sections_on(roles.plan, row.stage)[row.section]
        replayed = replayed_on(roles.plan, row.stage, row.section, copies)
        yield changed(row, NAME, phase="recompute", count=row.count // copies * replayed)
