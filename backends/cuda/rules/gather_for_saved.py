"""A recompute repeats the redistributions of recomputed tensors, even for an op whose own output is saved.

The framework-independent prediction repeats the redistributions of recomputed ops. An op that is not recomputed still
needs its input for the backward: if the input is recomputed, it is redistributed again too. A recompute that saves
outputs by kind of op repeats all collectives of a full recompute, including the all-to-alls of tokens.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from planc.backends.cuda.analysis.replays import is_selective, named_again
from planc.backends.cuda.analysis.roles import AxisRoles
from planc.backends.cuda.rules.rule import Rows, changed
from planc.ir.collective import Collective
from planc.sharding.recompute import close, replay
from planc.sharding.stage_assignment import microbatches_each, replayed_on, sections_on

NAME = "gather_for_saved"


def apply(roles: AxisRoles, rows: Rows) -> Rows:
    selective = is_selective(roles.sharded)
    if not (roles.plan.recompute.kept or selective):
        return rows
    moved = _gathered_again if selective else _redistributed_as_in_blocks
    again = {section: moved(roles, section) for section in roles.plan.model.blocks}
    return (*rows, *(new for row in rows for new in _again(roles, row, again.get(row.section, set()))))


def _gathered_again(roles: AxisRoles, section: str) -> set[str]:
    """Returns the recomputed tensors that are redistributed again for ops which are not recomputed themselves."""
    sharded = roles.sharded
    ops = sharded.ops[section]
    makers = {o.op.output: o.op for o in ops}
    read_again = {t for o in ops if named_again(sharded, o.op) for t in o.op.inputs}
    return {
        name
        for o in ops
        if not named_again(sharded, o.op)
        for name, move in zip(o.op.inputs, o.redistributions, strict=True)
        if move is not None and name in makers and named_again(sharded, makers[name]) and name not in read_again
    }


def _redistributed_as_in_blocks(roles: AxisRoles, section: str) -> set[str]:
    """Returns the tensors that a full recompute redistributes again and the framework-independent prediction does
    not."""
    ops = roles.sharded.model.ops[section]
    whole = close(roles.sharded.model, ops, {op.name for op in ops}).ops
    return _redistributed(roles, section, whole) - _redistributed(roles, section, replay(roles.plan, section).ops)


def _redistributed(roles: AxisRoles, section: str, names: Collection[str]) -> set[str]:
    ops = (o for o in roles.sharded.ops[section] if o.op.name in names)
    return {move.tensor for o in ops for move in (*o.redistributions, o.settle) if move is not None}


def _again(roles: AxisRoles, row: Collective, tensors: set[str]) -> Iterator[Collective]:
    """Yields the repetition of `row` in the recompute, if `row` redistributes one of the `tensors` in the forward."""
    settled = row.op in ("reduce_scatter", "all_reduce")
    if row.phase == "forward" and row.carries == "activation" and row.tensor in tensors and not settled:
        copies = sections_on(roles.plan, row.stage)[row.section]
        replayed = replayed_on(roles.plan, row.stage, row.section, copies)
        each = row.count // (copies * microbatches_each(roles.plan))
        yield changed(row, NAME, phase="recompute", count=each * replayed * microbatches_each(roles.plan))
