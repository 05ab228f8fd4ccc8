"""Rule W0309 (warning): all ranks along a mesh axis compute the same matmuls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from planc.checks.edits import add, sentence
from planc.checks.work import repeated_share
from planc.diag.diagnostic import Diagnostic, Fix
from planc.diag.registry import Rule
from planc.ir.plan import Plan

if TYPE_CHECKING:
    from planc.costing import CostedPlan

SHARE = 0.5


def check(costed: CostedPlan) -> Iterator[Diagnostic]:
    plan = costed.sharded.plan
    for axis in plan.mesh.axes:
        pipeline = plan.split is not None and plan.split.axis == axis.name
        if axis.size == 1 or pipeline:
            continue
        share = repeated_share(costed.sharded, axis.name)
        if share <= SHARE:
            continue
        uses = [s for s in plan.shards if axis.name in s.axes]
        yield Diagnostic(
            "W0309",
            f"{share:.0%} of the FLOPs are the same on all {axis.size} ranks of `{axis.name}`",
            uses[0].cause.span if uses else plan.mesh.cause.span,
            help=f"`{axis.name}` divides {_dims(plan, axis.name)}, which no matmul has as a dim:"
            " divide heads and ffn, or the batch, over it",
            fix=_fix(plan, axis.name, axis.size),
        )


def _dims(plan: Plan, axis: str) -> str:
    found = {f"{s.dim} in {s.region}" if s.region else s.dim for s in plan.shards if axis in s.axes}
    return ", ".join(sorted(found)) or "nothing"


def _fix(plan: Plan, axis: str, size: int) -> Fix | None:
    """Return the edit `use tp over AXIS`. None if the plan already shards heads, ffn or vocab, or if `size` does not
    divide them."""
    dims = ("heads", "kv_heads", "ffn", "vocab")
    taken = any(s.dim in dims for s in plan.shards)
    even = all(plan.model.sizes.get(d, 1) % size == 0 for d in dims)
    return None if taken or not even else add(plan.mesh, sentence("use", f"tp over {axis}"))


RULE = Rule("W0309", check=check)
