"""Rule W0307 (warning): redistribution of an activation between two layouts needs more than one collective."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from planc.diag.diagnostic import Diagnostic, Related
from planc.diag.registry import Rule
from planc.diag.span import Span
from planc.ir.model import ROUTED
from planc.ir.plan import Plan
from planc.ir.sharding import Layout, Move, Sharded
from planc.sharding.local import tensor_bytes

if TYPE_CHECKING:
    from planc.costing import CostedPlan


def check(costed: CostedPlan) -> Iterator[Diagnostic]:
    sharded = costed.sharded
    reported = set()
    for ops in sharded.ops.values():
        for o in ops:
            if o.op.kind in ("route", "combine", "loss"):
                continue
            for move in (*o.redistributions, o.settle):
                if (
                    move is None
                    or _dispatch(sharded, move)
                    or not _is_costly(move)
                    or (key := (repr(move.before), repr(move.after))) in reported
                ):
                    continue
                reported.add(key)
                yield _diagnostic(sharded, move, o.op.name)


def _dispatch(sharded: Sharded, move: Move) -> bool:
    """True for the dispatch of tokens to experts, which needs an all-gather too if several ranks share an expert."""
    return sharded.model.tensor[move.tensor].region == ROUTED


def _is_costly(move: Move) -> bool:
    """True if `move` needs more than one collective, or an all-gather of which only a slice is used."""
    kinds = [s.kind for s in move.steps]
    collectives = [k for k in kinds if k != "slice"]
    return len(collectives) > 1 or ("slice" in kinds and "all_gather" in kinds)


def _diagnostic(sharded: Sharded, move: Move, op: str) -> Diagnostic:
    plan = sharded.plan
    steps = [f"{s.kind} over {', '.join(s.axes)}" for s in move.steps]
    moved = [s for s in move.steps if s.kind != "slice"]
    whole = tensor_bytes(plan, move.tensor, _common_layout(move)) * len(moved)
    causes = _causes(plan, move)
    return Diagnostic(
        "W0307",
        f"{move.tensor} goes from {_layout_text(move.before, move.partial)} to {_layout_text(move.after, ())} at {op}: "
        + ", then ".join(steps),
        causes[0] if causes else plan.mesh.cause.span,
        help=f"about {whole / 2**20:.0f} MiB a microbatch and layer; a compiler may gather everything instead. Divide"
        " the same dims over the same axes on both sides, or one axis apart",
        related=tuple(Related(span, "the other layout") for span in causes[1:2]),
    )


def _common_layout(move: Move) -> Layout:
    return {d: kept for d, axes in move.before.items() if (kept := _common(axes, move.after.get(d, ())))}


def _common(one: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(a for a in one if a in other)


def _causes(plan: Plan, move: Move) -> list[Span]:
    """Return the spans of the `shard` sentences about the axes of `move`; those for one region come first."""
    axes = {a for s in move.steps for a in s.axes}
    shards = sorted((s for s in plan.shards if axes & set(s.axes)), key=lambda s: not s.region)
    return list(dict.fromkeys(s.cause.span for s in shards))


def _layout_text(layout: Layout, partial: tuple[str, ...]) -> str:
    parts = [f"{dim} over {', '.join(axes)}" for dim, axes in layout.items()]
    parts += [f"a sum over {', '.join(partial)}"] if partial else []
    return " and ".join(parts) or "whole"


RULE = Rule("W0307", check=check)
