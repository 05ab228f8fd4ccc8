"""Answers questions about attention under context parallelism, where each rank holds some tokens of every sequence of
its batch shard."""

from __future__ import annotations

from collections.abc import Iterator

from planc.backends.cuda.analysis.roles import AxisRoles
from planc.ir.sharding import OpSharding, RedistributionStep


def balanced(roles: AxisRoles) -> bool:
    """True if, in the plan of `roles`, a rank holds two chunks of a sequence, one from each end, which balances causal
    attention. False if it holds one chunk."""
    kernel = roles.plan.attention
    both = kernel is not None and kernel.from_both_ends
    return both and any(is_divided(roles, o) for o in roles.sharded.attentions)


def exchanges(roles: AxisRoles) -> Iterator[tuple[OpSharding, RedistributionStep, int | None]]:
    """Yields the all-to-alls over the context axes of `roles`: the op, the step of the redistribution, and the index of
    the op's input that is redistributed (None: its output)."""
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
