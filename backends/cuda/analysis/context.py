"""Attention under context parallelism: each rank holds some tokens of every sequence that it shares."""

from __future__ import annotations

from collections.abc import Iterator

from planc.backends.cuda.analysis.roles import AxisRoles
from planc.ir.sharding import OpSharding, RedistributionStep


def balanced(roles: AxisRoles) -> bool:
    """True if a rank of the plan of `roles` holds a chunk from each end of a sequence, instead of one chunk."""
    kernel = roles.plan.attention
    both = kernel is not None and kernel.from_both_ends
    return both and any(is_divided(roles, o) for o in roles.sharded.attentions)


def exchanges(roles: AxisRoles) -> Iterator[tuple[OpSharding, RedistributionStep, int | None]]:
    """Yields all-to-alls over the context axes of `roles`: the op, the step, and the index of its input (None: its
    output)."""
    for kind in roles.sharded.model.blocks:
        for o in roles.sharded.ops[kind]:
            moves = [*enumerate(o.redistributions), (None, o.settle)]
            for index, move in moves:
                for step in move.steps if move else ():
                    if step.kind == "all_to_all" and set(step.axes) & set(roles.context):
                        yield o, step, index


def is_divided(roles: AxisRoles, o: OpSharding) -> bool:
    """True if ranks hold different tokens at the op `o`."""
    return bool(set(o.layout.get("sequence", ())) & set(roles.context))


def gathers(roles: AxisRoles) -> bool:
    """True if the plan of `roles` all-gathers keys and values over the context axes."""
    divided = [o for o in roles.sharded.attentions if is_divided(roles, o)]
    return bool(divided) and not any(o.ring for o in divided)
